#include "common/tls/ssl_context.h"

#include <memory>
#include <string>

#include <openssl/bio.h>
#include <openssl/conf.h>
#include <openssl/ssl.h>

#include "common/tls/certificate.h"

namespace muster::tls {
namespace {

// Both have the hash that keys are used with.
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

// "system_default" is what each new context begins with (config(5)), gRPC's too: a ticket would let
// in whose certificate has ended since.
constexpr const char* kTls13Alone = R"(muster = modules
[modules]
ssl_conf = contexts
[contexts]
system_default = alone
[alone]
Protocol = -SSLv3,-TLSv1,-TLSv1.1,-TLSv1.2
NumTickets = 0
)";

Status LoadTls13Alone() {
  // First, and not later: the system's own file would replace this.
  if (OPENSSL_init_ssl(OPENSSL_INIT_LOAD_CONFIG, nullptr) != 1) {
    return Internal("OpenSSL does not start: {}", LastError());
  }
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new_mem_buf(kTls13Alone, -1), &BIO_free);
  const std::unique_ptr<CONF, decltype(&NCONF_free)> configuration(NCONF_new(nullptr), &NCONF_free);
  long line = 0;
  if (text == nullptr || configuration == nullptr ||
      NCONF_load_bio(configuration.get(), text.get(), &line) != 1 ||
      CONF_modules_load(configuration.get(), "muster", 0) != 1) {
    return Internal("OpenSSL does not take TLS 1.3 alone: {}", LastError());
  }
  return Ok();
}

}  // namespace

Status RequireTls13() {
  static const Status loaded = LoadTls13Alone();
  return loaded;
}

void FreeSslContext::operator()(ssl_ctx_st* one) const { SSL_CTX_free(one); }

Result<SslContextPtr> MakeSslContext() {
  SslContextPtr made(SSL_CTX_new(TLS_method()));
  if (made == nullptr || SSL_CTX_set_min_proto_version(made.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(made.get(), kCiphers) != 1) {
    return Internal("OpenSSL makes no context: {}", LastError());
  }
  // A key is as quick as a ticket, and a ticket would speak for a certificate that nobody has found
  // good (docs/decisions/0018-keys-instead-of-tickets.md).
  (void)SSL_CTX_set_options(made.get(), SSL_OP_NO_TICKET);
  (void)SSL_CTX_set_num_tickets(made.get(), 0);
  SSL_CTX_set_session_cache_mode(made.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(made.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return made;
}

}  // namespace muster::tls
