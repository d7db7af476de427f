#include "common/tls/ssl_context.h"

#include <openssl/ssl.h>

#include "common/tls/certificate.h"

namespace muster::tls {
namespace {

// Both have the hash that keys are used with.
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

}  // namespace

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
