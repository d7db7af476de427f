#include "common/tls/key_context.h"

#include <array>
#include <string_view>
#include <utility>

#include <openssl/hmac.h>
#include <openssl/ssl.h>

namespace muster::tls {
namespace {

constexpr std::array<unsigned char, 2> kAes128Gcm{0x13, 0x01};
constexpr std::string_view kKeyLabel = "muster tls key 1";

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

SSL_SESSION* SessionOfKey(SSL* ssl, std::string_view key) {
  std::array<unsigned char, 32> secret{};
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), Bytes(kKeyLabel), kKeyLabel.size(),
       secret.data(), &size);
  SSL_SESSION* session = SSL_SESSION_new();
  if (session == nullptr ||
      SSL_SESSION_set1_master_key(session, secret.data(), secret.size()) != 1 ||
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kAes128Gcm.data())) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1 ||
      SSL_SESSION_set1_id_context(session, Bytes(kKeyLabel), kKeyLabel.size()) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

}  // namespace

// They find their session by the SSL object.
struct KeyContext::Callbacks {
  static int UseKey(SSL* ssl, const EVP_MD*, const unsigned char** name, std::size_t* size,
                    SSL_SESSION** session) {
    const NamedKey& key = *static_cast<const Session*>(SSL_get_app_data(ssl))->key_;
    *session = SessionOfKey(ssl, key.key);
    *name = Bytes(key.name);
    *size = key.name.size();
    return *session != nullptr ? 1 : 0;
  }
  static int FindKey(SSL* ssl, const unsigned char* name, std::size_t size, SSL_SESSION** session) {
    const auto* ours = static_cast<const Session*>(SSL_get_app_data(ssl));
    const auto key = ours->keys_({reinterpret_cast<const char*>(name), size});
    *session = key ? SessionOfKey(ssl, *key) : nullptr;  // none: a name of nobody's
    return 1;
  }
};

std::shared_ptr<KeyContext> KeyContext::Make() {
  std::shared_ptr<KeyContext> made(new KeyContext);
  auto context = MakeSslContext();
  if (!context.ok()) return made;
  made->context_ = *std::move(context);
  // OpenSSL takes a key for a session that goes on, and asks where it was begun.
  (void)SSL_CTX_set_session_id_context(made->context_.get(), Bytes(kKeyLabel), kKeyLabel.size());
  SSL_CTX_set_psk_use_session_callback(made->context_.get(), Callbacks::UseKey);
  SSL_CTX_set_psk_find_session_callback(made->context_.get(), Callbacks::FindKey);
  return made;
}

Result<std::unique_ptr<Session>> KeyContext::NewSession(bool server) {
  if (context_ == nullptr) return Internal("OpenSSL makes no context for TLS 1.3");
  return Session::Make(context_.get(), server);
}

Result<std::unique_ptr<Session>> KeyContext::Connect(NamedKey key) {
  MUSTER_TRY_ASSIGN(auto session, NewSession(false));
  session->key_ = std::move(key);
  return session;
}

Result<std::unique_ptr<Session>> KeyContext::Accept(KeyNamed keys) {
  MUSTER_TRY_ASSIGN(auto session, NewSession(true));
  session->keys_ = std::move(keys);
  return session;
}

}  // namespace muster::tls
