#include "common/tls/context.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <utility>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/credential.h"
#include "common/base/wall_time.h"
#include "common/base/whole_file.h"
#include "common/tls/ssl_context.h"

namespace muster::tls {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

// Between two looks at the files.
constexpr std::chrono::milliseconds kLookEvery{500};
// A certificate's end is told of so long before, at most.
constexpr std::chrono::days kWarnBefore{14};
constexpr std::chrono::days kWarnEvery{1};

Period OwnPeriod(const ssl_ctx_st& context) {
  return PeriodOf(*SSL_CTX_get0_certificate(&context));
}

Result<std::string> ReadFile(const std::string& path, const char* setting) {
  Result<std::string> text = ReadWholeFile(path);
  if (!text.ok()) return InvalidArgument("{}: {}", setting, Message(text.status()));
  return text;
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

std::string StampsOf(const Files& files) {
  return fmt::format("{};{};{}", StampOf(files.ca), StampOf(files.certificate), StampOf(files.key));
}

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

struct Material {
  SslContextPtr context;
  Holder holder;
  Contents contents;
};

// All of them or none. What a peer would refuse in a handshake is found here, while the files from
// before are still in use.
Result<Material> Load(const Files& files, const Context::Accepts& accepts = {}) {
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
  if (accepts) MUSTER_TRY(accepts(*holder));
  return Material{std::move(context), *holder, {authorities, pem, key_pem}};
}

}  // namespace

Result<Holder> CheckFiles(const Files& files) {
  MUSTER_TRY_ASSIGN(const Material material, Load(files));
  if (!files.allowed.empty()) {
    MUSTER_TRY_ASSIGN(const X509Ptr own, ParseCertificate(material.contents.certificate,
                                                          "tls-cert: " + files.certificate));
    MUSTER_TRY(CheckAllowed(*own, files.allowed));
  }
  return material.holder;
}

Context::Context(Files files, OnWarning on_warning, Accepts accepts)
    : files_(std::move(files)), on_warning_(std::move(on_warning)), accepts_(std::move(accepts)) {}
Context::~Context() = default;

Result<std::shared_ptr<Context>> Context::FromFiles(Files files, OnWarning on_warning,
                                                    Accepts accepts) {
  const std::string stamp = StampsOf(files);
  std::shared_ptr<Context> made(
      new Context(std::move(files), std::move(on_warning), std::move(accepts)));
  MUSTER_TRY_ASSIGN(Material material, Load(made->files_, made->accepts_));
  if (!made->files_.allowed.empty()) {
    MUSTER_TRY_ASSIGN(made->allowed_, Allowed::Open(made->files_.allowed, made->on_warning_));
  }
  const MutexLock lock(made->mutex_);
  made->loaded_ = std::move(material.context);
  MUSTER_TRY(made->published_.Publish(material.contents));
  made->reload_ = Reload(stamp);
  made->looked_ = steady_clock::now();
  made->WarnOfEnd();
  return made;
}

std::shared_ptr<ssl_ctx_st> Context::Current() {
  const MutexLock lock(mutex_);
  const auto now = steady_clock::now();
  if (now - looked_ < kLookEvery) return loaded_;
  looked_ = now;
  if (!reload_.Due(StampsOf(files_), now)) {
    WarnOfEnd();
    return loaded_;
  }
  Result<Material> material = Load(files_, accepts_);
  Status status = material.status();
  if (status.ok()) status = published_.Publish(material->contents);
  if (status.ok()) {
    reload_.Succeeded();
    loaded_ = std::move(material->context);
  } else if (reload_.Failed(status.code(), now) && on_warning_) {
    on_warning_(
        fmt::format("the certificate's files have changed, and are of no use: {}; those "
                    "from before stay in use, and these are tried again",
                    Message(status)));
  }
  return loaded_;
}

void Context::WarnOfEnd() {
  const Period period = OwnPeriod(*loaded_);
  const auto now = system_clock::now();
  const auto soon = std::min<system_clock::duration>(kWarnBefore, (period.until - period.from) / 5);
  if (!on_warning_ || period.until - now > soon || now - warned_ < kWarnEvery) return;
  warned_ = now;
  on_warning_(
      fmt::format("the certificate {} ends at {}: put another one in its place (muster certs "
                  "issue); nobody is let in with it afterwards",
                  files_.certificate, UtcText(period.until)));
}

system_clock::time_point Context::Ends() { return OwnPeriod(*Current()).until; }

Files Context::Follow() {
  const MutexLock lock(mutex_);
  if (!follower_.joinable()) {
    follower_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }
  return {.ca = published_.ca(),
          .certificate = published_.certificate(),
          .key = published_.key(),
          .allowed = files_.allowed};
}

void Context::Run(const std::stop_token& stop) {
  Mutex sleeping;
  std::condition_variable_any stopped;
  while (!stop.stop_requested()) {
    {
      std::unique_lock<Mutex> lock(sleeping);
      (void)stopped.wait_for(lock, stop, 2 * kLookEvery, [] { return false; });
    }
    (void)Current();
  }
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

Result<std::unique_ptr<Session>> Context::Connect(const std::string& task,
                                                  const std::string& host) {
  MUSTER_TRY_ASSIGN(auto session, NewSession(false));
  session->wanted_task_ = task;
  session->wanted_host_ = host;
  return session;
}

}  // namespace muster::tls
