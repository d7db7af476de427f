#include "common/tls/context.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/environment.h"
#include "common/tls/ssl_context.h"

namespace muster::tls {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

// Between two looks at the files.
constexpr std::chrono::milliseconds kLookEvery{500};

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
  SslContextPtr context;
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
  MUSTER_TRY_ASSIGN(SslContextPtr context, MakeSslContext());
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
  made->loaded_ = std::move(material.context);
  made->reload_ = Reload(stamp);
  made->looked_ = steady_clock::now();
  return made;
}

std::shared_ptr<ssl_ctx_st> Context::Current() {
  const MutexLock lock(mutex_);
  const auto now = steady_clock::now();
  if (now - looked_ < kLookEvery) return loaded_;
  looked_ = now;
  if (!reload_.Due(StampOf(files_), now)) return loaded_;
  Result<Material> material = Load(files_);
  if (material.ok()) {
    reload_.Succeeded();
    loaded_ = std::move(material->context);
  } else if (reload_.Failed(material.status().code(), now) && on_warning_) {
    on_warning_(
        fmt::format("the certificate's files have changed, and are of no use: {}; those "
                    "from before stay in use, and these are tried again",
                    Message(material.status())));
  }
  return loaded_;
}

Result<std::unique_ptr<Session>> Context::NewSession(bool server) {
  MUSTER_TRY_ASSIGN(auto session, Session::Make(Current().get(), server));
  session->allowed_ = allowed_;
  return session;
}

Result<std::unique_ptr<Session>> Context::Accept() {
  MUSTER_TRY_ASSIGN(auto session, NewSession(true));
  session->LetInAll();
  return session;
}

Result<std::unique_ptr<Session>> Context::Connect(const std::string& task) {
  MUSTER_TRY_ASSIGN(auto session, NewSession(false));
  session->wanted_task_ = task;
  return session;
}

}  // namespace muster::tls
