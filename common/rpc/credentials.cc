#include "common/rpc/credentials.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "common/base/host_port.h"
#include "common/tls/allowed.h"
#include "common/tls/ssl_context.h"

namespace muster::rpc {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::TlsCustomVerificationCheckRequest;

// Between two looks at the files, in seconds.
constexpr unsigned kLookEvery = 1;
// All methods of gRPC's reflection, of whatever version.
constexpr std::string_view kReflection = "/grpc.reflection.";

std::string TextOf(grpc::string_ref text) { return {text.data(), text.size()}; }

// Null: the connection is in the clear.
Result<tls::X509Ptr> CertificateOf(const grpc::AuthContext& connection) {
  const auto certificates = connection.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (certificates.empty()) return tls::X509Ptr();
  return tls::ParseCertificate(TextOf(certificates.front()), "the caller's");
}

Status CheckServer(const std::string& pem, const std::string& host, const tls::Context& context) {
  MUSTER_TRY_ASSIGN(const tls::X509Ptr certificate, tls::ParseCertificate(pem, host));
  MUSTER_TRY_ASSIGN(const tls::Holder holder, tls::HolderOf(*certificate));
  if (holder.role != tls::Role::kNode || !std::ranges::count(holder.names, kCoordinatorTask)) {
    return PermissionDenied("{} shows the certificate of {}, and a coordinator's is node {}", host,
                            holder.ToString(), kCoordinatorTask);
  }
  MUSTER_TRY(tls::CheckAllowed(*certificate, context.allowed().get()));
  return tls::CheckHost(*certificate, host);
}

// The chain and the dates are gRPC's; this is what it cannot know.
class ServerVerifier final : public ExternalCertificateVerifier {
 public:
  explicit ServerVerifier(std::shared_ptr<tls::Context> context) : context_(std::move(context)) {}
  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* verdict) override {
    const Status status = CheckServer(TextOf(request->peer_cert()),
                                      HostIn(TextOf(request->target_name())), *context_);
    *verdict = grpc::Status(static_cast<grpc::StatusCode>(status.code()), Message(status));
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::shared_ptr<tls::Context> context_;  // whose files gRPC reads
};

// gRPC's own service asks nobody who calls; ours ask for themselves.
class ReflectionGuard final : public grpc::AuthMetadataProcessor {
 public:
  explicit ReflectionGuard(std::shared_ptr<tls::Context> context) : context_(std::move(context)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    if (path != metadata.end() && !path->second.starts_with(grpc::string_ref(kReflection.data()))) {
      return grpc::Status::OK;
    }
    const Status status = Check(*context);
    return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Message(status));
  }

 private:
  Status Check(const grpc::AuthContext& context) const {
    MUSTER_TRY_ASSIGN(const tls::X509Ptr certificate, CertificateOf(context));
    if (certificate == nullptr) return Unauthenticated("reflection: no certificate was shown");
    MUSTER_TRY(tls::HolderOf(*certificate).status());
    return tls::CheckAllowed(*certificate, context_->allowed().get());
  }
  const std::shared_ptr<tls::Context> context_;  // whose files gRPC reads
};

template <class Options>
void Watch(Options& options) {
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
}

std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> Watcher(
    const tls::Files& files) {
  const Status tls13 = tls::RequireTls13();
  MUSTER_INVARIANT(tls13.ok());
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.ca, kLookEvery);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    const std::shared_ptr<tls::Context>& context) {
  if (context == nullptr) return grpc::InsecureChannelCredentials();
  const tls::Files files = context->Follow();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watcher(files));
  Watch(options);
  // The verifier's words say more than gRPC's own check of the host.
  options.set_check_call_host(false);
  options.set_certificate_verifier(ExternalCertificateVerifier::Create<ServerVerifier>(context));
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(
    const std::shared_ptr<tls::Context>& context) {
  if (context == nullptr) return grpc::InsecureServerCredentials();
  const tls::Files files = context->Follow();
  grpc::experimental::TlsServerCredentialsOptions options(Watcher(files));
  Watch(options);
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  auto credentials = grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<ReflectionGuard>(context));
  return credentials;
}

Result<std::optional<Shown>> CallerOf(const grpc::AuthContext& connection) {
  MUSTER_TRY_ASSIGN(const tls::X509Ptr certificate, CertificateOf(connection));
  if (certificate == nullptr) return std::optional<Shown>();
  MUSTER_TRY_ASSIGN(tls::Holder holder, tls::HolderOf(*certificate));
  return std::optional(
      Shown{.holder = std::move(holder), .fingerprint = tls::FingerprintOf(*certificate)});
}

}  // namespace muster::rpc
