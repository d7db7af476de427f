#include "services/common/grpc_server.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include "common/base/whole_file.h"
#include "common/rpc/credentials.h"
#include "common/telemetry/log.h"
#include "services/common/grpc_channel.h"

namespace muster::services {
namespace {

// gRPC reads a unary call's message whole before anybody can ask for the caller's token, and looks
// at its size after that. So all messages under way together are bounded: beyond this gRPC breaks
// streams off, ours too, which are made again.
constexpr std::size_t kMostMemory = std::size_t{128} << 20;
// Calls at a time on one connection. Our own clients have a handful.
constexpr int kMostStreams = 64;

// What gRPC itself says goes into our log; its errors are of connections that we report better.
void OnGrpcLog(gpr_log_func_args* args) { log::Debug("grpc: {}", args->message); }

void SetUpGrpcOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(OnGrpcLog);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

std::string Caller::ToString() const {
  if (names.empty()) return "the token";
  return tls::Holder{.role = role, .names = names}.ToString();
}

bool Caller::MayBe(std::string_view task) const {
  return names.empty() || (role == tls::Role::kNode && std::ranges::count(names, task) > 0);
}

std::string CallerName(const grpc::ServerContextBase& context) {
  const auto shown = rpc::CallerOf(*context.auth_context());
  return shown.ok() && *shown ? (*shown)->holder.ToString() : "somebody";
}

namespace {

Status CheckToken(const grpc::ServerContextBase& context, const Token& token) {
  const auto& metadata = context.client_metadata();
  const auto header = metadata.find("authorization");
  if (header == metadata.end()) {
    return Unauthenticated("no token: the call has no \"authorization: Bearer ...\" metadata");
  }
  if (!token.Accepts({header->second.data(), header->second.size()})) {
    return Unauthenticated("wrong token: the caller's token file is not this cluster's");
  }
  return Ok();
}

}  // namespace

Result<Caller> CheckCaller(const grpc::ServerContextBase& context, const Token& token,
                           tls::Role least, tls::Allowed* allowed) {
  MUSTER_TRY_ASSIGN(const std::optional<rpc::Shown> shown, rpc::CallerOf(*context.auth_context()));
  if (!shown || shown->holder.role == tls::Role::kNode) MUSTER_TRY(CheckToken(context, token));
  if (!shown) return Caller();
  Caller caller{
      .role = shown->holder.role, .names = shown->holder.names, .fingerprint = shown->fingerprint};
  MUSTER_TRY(CheckStillAllowed(caller, allowed));
  if (caller.role < least) {
    return PermissionDenied(
        "{} may not do this: it takes the certificate of a {} (muster certs issue)",
        caller.ToString(), tls::RoleName(least));
  }
  return caller;
}

Status CheckStillAllowed(const Caller& caller, tls::Allowed* allowed) {
  if (allowed == nullptr || caller.fingerprint.empty()) return Ok();
  return allowed->Check(caller.fingerprint, caller.ToString());
}

// gRPC never listens itself: connections come from the Acceptor, which bounds how many there are.
Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const Options& options) {
  SetUpGrpcOnce();
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 2'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  builder.SetResourceQuota(grpc::ResourceQuota("muster").Resize(kMostMemory));
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Who connects and says nothing is gone after this.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5'000);
  // Not AddListeningPort(): see Acceptor.
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> connections =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          rpc::ServerCredentials(options.tls));
  for (grpc::Service* service : options.services) builder.RegisterService(service);

  MUSTER_TRY_ASSIGN(auto acceptor, Acceptor::Bind(options.listen, options.most_connections));
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Internal("gRPC does not start a server");
  std::unique_ptr<GrpcServer> result(
      new GrpcServer(std::move(server), std::move(acceptor), options.on_ready));
  result->SetReady(false);
  result->acceptor_->Start([connections](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    connections->HandleNewConnection(&connection);
  });
  if (!options.port_file.empty()) {
    MUSTER_TRY(ReplaceFile(options.port_file, result->endpoint().ToString() + "\n"));
  }
  return result;
}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::milliseconds(0)); }

void GrpcServer::SetReady(bool ready) {
  server_->GetHealthCheckService()->SetServingStatus("muster.ready", ready);
  if (on_ready_) on_ready_(ready);
}

void GrpcServer::Shutdown(std::chrono::milliseconds grace) {
  acceptor_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
}

}  // namespace muster::services
