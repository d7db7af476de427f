#include "common/tls/context.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/environment.h"

namespace muster::tls {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

// Between two looks at the files.
constexpr std::chrono::milliseconds kLookEvery{500};
// Both have the hash that keys are used with.
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr std::array<unsigned char, 2> kAes128Gcm{0x13, 0x01};
constexpr std::string_view kKeyLabel = "muster tls key 1";

struct FreeContext {
  void operator()(SSL_CTX* one) const { SSL_CTX_free(one); }
};
using ContextPtr = std::unique_ptr<SSL_CTX, FreeContext>;

Result<std::string> ReadFile(const std::string& path, const char* setting) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) {
    return InvalidArgument("{}: {}", setting, Message(FromErrno(errno, "read " + path)));
  }
  return text;
}

// Whether systemd has put it where only this unit's processes come.
bool IsCredential(const std::string& path) {
  const std::string folder = ProcessEnvironment()("CREDENTIALS_DIRECTORY").value_or("");
  return !folder.empty() && std::filesystem::path(path).parent_path() == folder;
}

// Ours alone; or root's, who lets a group of ours read it (systemd's credentials, Kubernetes'
// secrets).
Status CheckKeyMode(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return InvalidArgument("tls-key: {}", path);
  const unsigned allowed = info.st_uid == 0 || IsCredential(path) ? 0740U : 0700U;
  const unsigned mode = info.st_mode & 07777U;
  if ((info.st_uid == ::geteuid() || info.st_uid == 0) && (mode & ~allowed) == 0) return Ok();
  return PermissionDenied(
      "tls-key: {} has mode {:04o} and owner {}: only this process's user ({}) may read it. Run: "
      "chmod 600 {}",
      path, mode, info.st_uid, ::geteuid(), path);
}

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

Result<ContextPtr> MakeContext() {
  ContextPtr made(SSL_CTX_new(TLS_method()));
  if (made == nullptr || SSL_CTX_set_min_proto_version(made.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(made.get(), kCiphers) != 1) {
    return Internal("OpenSSL makes no context: {}", LastError());
  }
  // One for each connection, so that there is one for the next.
  (void)SSL_CTX_set_num_tickets(made.get(), 1);
  (void)SSL_CTX_set_timeout(made.get(), kTicketLife.count());
  // OpenSSL takes a key for a session that goes on, and asks where it was begun.
  (void)SSL_CTX_set_session_id_context(made.get(), Bytes(kKeyLabel), kKeyLabel.size());
  // OpenSSL's own is by context; ours is by task.
  SSL_CTX_set_session_cache_mode(made.get(), SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_set_mode(made.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return made;
}

// What a change of the files changes.
std::string StampOf(const Files& files) {
  std::string stamp;
  for (const std::string* path : {&files.ca, &files.certificate, &files.key}) {
    struct stat info{};
    if (::stat(path->c_str(), &info) != 0) {
      stamp += fmt::format("{}: {};", *path, errno);
      continue;
    }
    stamp += fmt::format("{}/{}/{}.{:09};", info.st_ino, info.st_size, info.st_mtim.tv_sec,
                         info.st_mtim.tv_nsec);
  }
  return stamp;
}

struct Material {
  ContextPtr context;
  Holder holder;
};

Status CheckIssuer(SSL_CTX* context, X509* certificate, const Files& files) {
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> check(X509_STORE_CTX_new(),
                                                                              &X509_STORE_CTX_free);
  STACK_OF(X509)* behind = nullptr;
  SSL_CTX_get0_chain_certs(context, &behind);
  if (check == nullptr ||
      X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context), certificate, behind) != 1) {
    return Internal("OpenSSL cannot check a certificate: {}", LastError());
  }
  if (X509_verify_cert(check.get()) == 1) return Ok();
  return FailedPrecondition("tls-cert: {} (issued by {}) is not of an authority in tls-ca {}: {}",
                            files.certificate, IssuerOf(*certificate), files.ca,
                            X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get())));
}

Result<Material> Load(const Files& files) {
  for (const auto& [setting, path] : {std::pair("tls-ca", &files.ca),
                                      {"tls-cert", &files.certificate},
                                      {"tls-key", &files.key}}) {
    if (path->empty()) {
      return InvalidArgument("{} is missing: tls-ca, tls-cert and tls-key belong together",
                             setting);
    }
  }
  MUSTER_TRY_ASSIGN(const std::string pem, ReadFile(files.certificate, "tls-cert"));
  MUSTER_TRY_ASSIGN(const std::string key_pem, ReadFile(files.key, "tls-key"));
  MUSTER_TRY_ASSIGN(const std::string authorities, ReadFile(files.ca, "tls-ca"));
  MUSTER_TRY(CheckKeyMode(files.key));
  MUSTER_TRY_ASSIGN(const X509Ptr certificate,
                    ParseCertificate(pem, "tls-cert: " + files.certificate));
  MUSTER_TRY_ASSIGN(const KeyPtr key, ParseKey(key_pem, "tls-key: " + files.key));
  MUSTER_TRY_ASSIGN(const X509Ptr authority, ParseCertificate(authorities, "tls-ca: " + files.ca));
  MUSTER_TRY_ASSIGN(ContextPtr context, MakeContext());
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1) {
    return InvalidArgument("tls-cert: {}: {}", files.certificate, LastError());
  }
  if (SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    ERR_clear_error();
    return FailedPrecondition("tls-key: {} is not the key of the certificate {}", files.key,
                              files.certificate);
  }
  if (SSL_CTX_load_verify_file(context.get(), files.ca.c_str()) != 1) {
    return InvalidArgument("tls-ca: {}: {}", files.ca, LastError());
  }
  MUSTER_TRY(CheckPeriod(*certificate, std::chrono::system_clock::now(),
                         fmt::format("tls-cert: {}", files.certificate)));
  MUSTER_TRY(CheckIssuer(context.get(), certificate.get(), files));
  const auto holder = HolderOf(*certificate);
  if (!holder.ok()) return Annotate(holder.status(), "tls-cert: " + files.certificate);
  return Material{std::move(context), *holder};
}

}  // namespace

struct Context::Loaded {
  ContextPtr context;
  // With the context, so that those from before the files changed are not used.
  const std::shared_ptr<Tickets> tickets = std::make_shared<Tickets>();

  // The callbacks find their session by the SSL object.
  static int UseKey(SSL* ssl, const EVP_MD*, const unsigned char** name, std::size_t* size,
                    SSL_SESSION** session) {
    const auto* ours = static_cast<const Session*>(SSL_get_app_data(ssl));
    *name = nullptr;
    *size = 0;
    *session = nullptr;
    if (!ours->key_) return 1;
    *session = SessionOfKey(ssl, ours->key_->key);
    *name = reinterpret_cast<const unsigned char*>(ours->key_->name.data());
    *size = ours->key_->name.size();
    return *session != nullptr ? 1 : 0;
  }
  static int FindKey(SSL* ssl, const unsigned char* name, std::size_t size, SSL_SESSION** session) {
    const auto* ours = static_cast<const Session*>(SSL_get_app_data(ssl));
    *session = nullptr;
    if (!ours->keys_) return 1;
    const auto key = ours->keys_({reinterpret_cast<const char*>(name), size});
    if (!key) return 1;  // a name of nobody's, or a ticket
    *session = SessionOfKey(ssl, *key);
    (void)SSL_set_num_tickets(ssl, 0);  // it would be no quicker by one
    return 1;
  }

  // The server's side of tickets: until when its taker may come back goes into it, and on into
  // those that are given to who comes by it.
  static int GiveTicket(SSL* ssl, void*) {
    if (SSL_session_reused(ssl) == 1) return 1;
    const std::int64_t until = system_clock::to_time_t(GoodUntil(ssl));
    return SSL_SESSION_set1_ticket_appdata(SSL_get_session(ssl), &until, sizeof(until));
  }
  // What it does not take is as if no ticket had come: the peer shows its certificate.
  static SSL_TICKET_RETURN TakeTicket(SSL* ssl, SSL_SESSION* session, const unsigned char*,
                                      std::size_t, SSL_TICKET_STATUS status, void*) {
    if (status != SSL_TICKET_SUCCESS && status != SSL_TICKET_SUCCESS_RENEW) {
      return SSL_TICKET_RETURN_IGNORE_RENEW;
    }
    const auto* ours = static_cast<const Session*>(SSL_get_app_data(ssl));
    void* data = nullptr;
    std::size_t size = 0;
    std::int64_t until = 0;
    const X509* const certificate = SSL_SESSION_get0_peer(session);
    if (certificate == nullptr || SSL_SESSION_get0_ticket_appdata(session, &data, &size) != 1 ||
        size != sizeof(until)) {
      return SSL_TICKET_RETURN_IGNORE_RENEW;
    }
    std::memcpy(&until, data, size);
    const bool good = system_clock::now() < system_clock::from_time_t(until) &&
                      ours->CheckAllowed(*certificate).ok();
    return good ? SSL_TICKET_RETURN_USE_RENEW : SSL_TICKET_RETURN_IGNORE_RENEW;
  }
  // The client's.
  static int KeepTicket(SSL* ssl, SSL_SESSION* session) {
    const auto* ours = static_cast<const Session*>(SSL_get_app_data(ssl));
    if (ours->tickets_ == nullptr) return 0;
    const auto until = SSL_session_reused(ssl) == 1 ? ours->ticket_until_ : GoodUntil(ssl);
    // A copy: OpenSSL spoils the connection's own when that is cut.
    if (SslSessionPtr copy(SSL_SESSION_dup(session)); copy != nullptr) {
      ours->tickets_->Keep({ours->wanted_task_, std::move(copy), until});
    }
    return 0;
  }

  explicit Loaded(ContextPtr made) : context(std::move(made)) {
    SSL_CTX_set_psk_use_session_callback(context.get(), UseKey);
    SSL_CTX_set_psk_find_session_callback(context.get(), FindKey);
    (void)SSL_CTX_set_session_ticket_cb(context.get(), GiveTicket, TakeTicket, nullptr);
    SSL_CTX_sess_set_new_cb(context.get(), KeepTicket);
  }
};

Result<Holder> CheckFiles(const Files& files) {
  MUSTER_TRY_ASSIGN(const Material material, Load(files));
  if (!files.allowed.empty()) {
    MUSTER_TRY_ASSIGN(const std::string pem, ReadFile(files.certificate, "tls-cert"));
    MUSTER_TRY_ASSIGN(const X509Ptr own, ParseCertificate(pem, "tls-cert: " + files.certificate));
    MUSTER_TRY(CheckAllowed(*own, files.allowed));
  }
  return material.holder;
}

Context::Context(Files files, OnWarning on_warning)
    : files_(std::move(files)), on_warning_(std::move(on_warning)) {}
Context::~Context() = default;

Result<std::shared_ptr<Context>> Context::FromFiles(Files files, OnWarning on_warning) {
  const std::string stamp = StampOf(files);
  MUSTER_TRY_ASSIGN(Material material, Load(files));
  std::shared_ptr<Allowed> allowed;
  if (!files.allowed.empty()) {
    MUSTER_TRY_ASSIGN(allowed, Allowed::Open(files.allowed, on_warning));
  }
  std::shared_ptr<Context> made(new Context(std::move(files), std::move(on_warning)));
  made->allowed_ = std::move(allowed);
  const MutexLock lock(made->mutex_);
  made->loaded_ = std::make_shared<const Loaded>(std::move(material.context));
  made->reload_ = Reload(stamp);
  made->looked_ = steady_clock::now();
  return made;
}

// What OpenSSL has against it is said by the first session.
std::shared_ptr<Context> Context::ForKeys() {
  std::shared_ptr<Context> made(new Context({}, {}));
  const MutexLock lock(made->mutex_);
  if (auto context = MakeContext(); context.ok()) {
    made->loaded_ = std::make_shared<const Loaded>(*std::move(context));
  }
  return made;
}

std::shared_ptr<const Context::Loaded> Context::Current() {
  const MutexLock lock(mutex_);
  const auto now = steady_clock::now();
  if (!files_.given() || now - looked_ < kLookEvery) return loaded_;
  looked_ = now;
  if (!reload_.Due(StampOf(files_), now)) return loaded_;
  Result<Material> material = Load(files_);
  if (material.ok()) {
    reload_.Succeeded();
    loaded_ = std::make_shared<const Loaded>(std::move(material->context));
  } else if (reload_.Failed(material.status().code(), now) && on_warning_) {
    on_warning_(
        fmt::format("the certificate's files have changed, and are of no use: {}; those "
                    "from before stay in use, and these are tried again",
                    Message(material.status())));
  }
  return loaded_;
}

Result<std::unique_ptr<Session>> Context::NewSession(const Loaded* from, bool server) {
  if (from == nullptr) return Internal("OpenSSL makes no context for TLS 1.3");
  MUSTER_TRY_ASSIGN(auto session, Session::Make(from->context.get(), server));
  session->allowed_ = allowed_;
  return session;
}

Result<std::unique_ptr<Session>> Context::Accept(KeyNamed keys) {
  MUSTER_TRY_ASSIGN(auto session, NewSession(Current().get(), true));
  session->keys_ = std::move(keys);
  return session;
}

Result<std::unique_ptr<Session>> Context::AcceptVisitor() {
  MUSTER_TRY_ASSIGN(auto session, NewSession(Current().get(), true));
  session->LetInAll();
  return session;
}

Result<std::unique_ptr<Session>> Context::ConnectFrom(const Loaded* from, const std::string& task) {
  if (!has_certificate()) {
    return FailedPrecondition("this process has no certificate: give tls-ca, tls-cert and tls-key");
  }
  MUSTER_TRY_ASSIGN(auto session, NewSession(from, false));
  session->wanted_task_ = task;
  return session;
}

Result<std::unique_ptr<Session>> Context::Connect(const std::string& task) {
  return ConnectFrom(Current().get(), task);
}

Result<std::unique_ptr<Session>> Context::ConnectAgain(const std::string& task) {
  const std::shared_ptr<const Loaded> current = Current();
  MUSTER_TRY_ASSIGN(auto session, ConnectFrom(current.get(), task));
  if (task.empty()) return session;
  session->tickets_ = current->tickets;
  const Ticket ticket = current->tickets->Take(task, system_clock::now());
  if (ticket.session == nullptr) return session;
  // Without its certificate the server is not asked about again.
  const X509* const certificate = SSL_SESSION_get0_peer(ticket.session.get());
  if (certificate == nullptr || !session->CheckAllowed(*certificate).ok()) return session;
  session->ticket_until_ = ticket.until;
  (void)SSL_set_session(session->ssl_, ticket.session.get());
  return session;
}

Result<std::unique_ptr<Session>> Context::Connect(NamedKey key) {
  MUSTER_TRY_ASSIGN(auto session, NewSession(Current().get(), false));
  session->key_ = std::move(key);
  return session;
}

}  // namespace muster::tls
