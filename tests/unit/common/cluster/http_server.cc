#include "tests/unit/common/cluster/http_server.h"

#include <list>
#include <mutex>
#include <thread>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <fmt/core.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

namespace muster::cluster {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace ssl = boost::asio::ssl;
using boost::asio::ip::tcp;

constexpr auto kToken = asio::as_tuple(asio::use_awaitable);

template <auto free_function>
struct Freed {
  template <class T>
  void operator()(T* pointer) const {
    free_function(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Freed<&BIO_free_all>>;

std::string Text(const Bio& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<std::size_t>(size));
}

}  // namespace

Certificate MakeCertificate(const std::string& names) {
  const std::unique_ptr<EVP_PKEY, Freed<&EVP_PKEY_free>> key(EVP_EC_gen("P-256"));
  const std::unique_ptr<X509, Freed<&X509_free>> certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* name = X509_get_subject_name(certificate.get());
  const unsigned char common_name[] = "muster test";
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, common_name, -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  const std::unique_ptr<X509_EXTENSION, Freed<&X509_EXTENSION_free>> alternative(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str()));
  X509_add_ext(certificate.get(), alternative.get(), -1);
  X509_sign(certificate.get(), key.get(), EVP_sha256());

  const Bio key_text(BIO_new(BIO_s_mem()));
  const Bio certificate_text(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  PEM_write_bio_X509(certificate_text.get(), certificate.get());
  return {.key = Text(key_text), .certificate = Text(certificate_text)};
}

std::string HttpText(int status, const std::string& body) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
      std::string(http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)))),
      body.size(), body);
}

struct HttpServer::State {
  State(Handler answer, const Certificate* tls)
      : handler(std::move(answer)),
        acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {
    if (tls != nullptr) {
      context.emplace(ssl::context::tls_server);
      context->use_certificate_chain(asio::buffer(tls->certificate));
      context->use_private_key(asio::buffer(tls->key), ssl::context::pem);
    }
  }

  asio::awaitable<void> Accept() {
    while (true) {
      auto [error, socket] = co_await acceptor.async_accept(kToken);
      if (error) co_return;
      asio::co_spawn(io, Serve(beast::tcp_stream(std::move(socket))), asio::detached);
    }
  }

  asio::awaitable<void> Serve(beast::tcp_stream plain) {
    if (!context) {
      if (!co_await Answer(plain)) silent.push_back(std::move(plain));
      co_return;
    }
    beast::ssl_stream<beast::tcp_stream> stream(std::move(plain), *context);
    const auto [error] = co_await stream.async_handshake(ssl::stream_base::server, kToken);
    if (error) co_return;
    if (!co_await Answer(stream)) {
      silent.push_back(std::move(beast::get_lowest_layer(stream)));
      co_return;
    }
    co_await stream.async_shutdown(kToken);
  }

  // False: the handler wants silence.
  template <class Stream>
  asio::awaitable<bool> Answer(Stream& stream) {
    beast::flat_buffer buffer;
    http::request<http::string_body> request;
    const auto [read_error, read] = co_await http::async_read(stream, buffer, request, kToken);
    if (read_error) co_return true;
    // Member by member: g++ 12 mishandles aggregates in coroutines.
    ServerRequest received;
    received.method = std::string(request.method_string());
    received.target = std::string(request.target());
    received.authorization = std::string(request[http::field::authorization]);
    received.metadata_flavor = std::string(request["Metadata-Flavor"]);
    received.body = request.body();
    {
      const std::lock_guard lock(mutex);
      requests.push_back(received);
    }
    const std::optional<std::string> answer = handler(received);
    if (!answer) co_return false;
    co_await asio::async_write(stream, asio::buffer(*answer), kToken);
    co_return true;
  }

  Handler handler;
  asio::io_context io;
  std::optional<ssl::context> context;
  tcp::acceptor acceptor;
  std::list<beast::tcp_stream> silent;
  mutable std::mutex mutex;
  std::vector<ServerRequest> requests;
  std::thread thread;
};

HttpServer::HttpServer(Handler handler, const Certificate* tls)
    : state_(std::make_unique<State>(std::move(handler), tls)) {
  asio::co_spawn(state_->io, state_->Accept(), asio::detached);
  state_->thread = std::thread([state = state_.get()] { state->io.run(); });
}

HttpServer::~HttpServer() {
  state_->io.stop();
  state_->thread.join();
}

std::string HttpServer::Url(const std::string& host) const {
  return fmt::format("{}://{}:{}", state_->context ? "https" : "http", host,
                     state_->acceptor.local_endpoint().port());
}

std::vector<ServerRequest> HttpServer::Requests() const {
  const std::lock_guard lock(state_->mutex);
  return state_->requests;
}

}  // namespace muster::cluster
