// Speaks TLS to a server of ours as a browser or curl does: with OpenSSL alone, with a certificate
// or without, and without a look at the server's.
#pragma once

#include <chrono>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <string>

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "common/tls/context.h"
#include "tests/unit/services/admin/http_client.h"

namespace muster::testing {

class HttpsClient {
 public:
  // Without a certificate where none is given.
  explicit HttpsClient(int port, const tls::Files& files = {}, int newest = TLS1_3_VERSION)
      : context_(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free), socket_(port) {
    (void)SSL_CTX_set_max_proto_version(context_.get(), newest);
    // What tls::RequireTls13() refuses to servers of this process.
    (void)SSL_CTX_clear_options(context_.get(), SSL_OP_NO_TLSv1_2);
    if (!files.certificate.empty() &&
        (SSL_CTX_use_certificate_chain_file(context_.get(), files.certificate.c_str()) != 1 ||
         SSL_CTX_use_PrivateKey_file(context_.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1)) {
      throw std::runtime_error("no certificate in " + files.certificate);
    }
    const timeval limit{.tv_sec = 30, .tv_usec = 0};
    (void)::setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    // OpenSSL writes to a socket that the server may have closed.
    (void)std::signal(SIGPIPE, SIG_IGN);
    ssl_.reset(SSL_new(context_.get()));
    (void)SSL_set_fd(ssl_.get(), socket_.fd());
    connected_ = SSL_connect(ssl_.get()) == 1;
  }

  bool connected() const { return connected_; }
  // The server gave it something to come back by.
  bool has_ticket() const { return SSL_SESSION_has_ticket(SSL_get0_session(ssl_.get())) == 1; }
  // The fingerprint of the server's certificate; empty: it has shown none.
  std::string fingerprint() const {
    const std::unique_ptr<X509, decltype(&X509_free)> shown(SSL_get1_peer_certificate(ssl_.get()),
                                                            &X509_free);
    return shown ? tls::FingerprintOf(*shown) : "";
  }

  // One answer, or what there is of it when the server closes.
  std::string Get(const std::string& path) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: here\r\n\r\n";
    if (SSL_write(ssl_.get(), request.data(), static_cast<int>(request.size())) <= 0) return "";
    std::string text;
    while (true) {
      if (IsWhole(text)) return text;
      char bytes[4'096];
      const int count = SSL_read(ssl_.get(), bytes, sizeof bytes);
      if (count <= 0) return text;
      text.append(bytes, static_cast<std::size_t>(count));
    }
  }

 private:
  struct Free {
    void operator()(SSL* one) const { SSL_free(one); }
  };
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  HttpClient socket_;
  std::unique_ptr<SSL, Free> ssl_;
  bool connected_ = false;
};

}  // namespace muster::testing
