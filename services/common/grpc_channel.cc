#include "services/common/grpc_channel.h"

#include <algorithm>
#include <string_view>

#include <fmt/core.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "common/base/utf8.h"
#include "common/base/words.h"
#include "common/rpc/credentials.h"
#include "common/rpc/names.h"

namespace muster::services {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<tls::Context>& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 2'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, rpc::kMsBetweenLookups);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Two clients of one address must not share a connection: a fault of one is then one's own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(rpc::TargetOf(address), rpc::ClientCredentials(tls), arguments);
}

void Authorize(grpc::ClientContext& context, const Token& token) {
  context.AddMetadata("authorization", token.Header());
}

Status FromGrpc(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty()) {
    return MakeStatus(StatusCode::kUnimplemented, std::string(kNoSuchCall));
  }
  return MakeStatus(static_cast<StatusCode>(status.error_code()),
                    TransportWords(status.error_message()));
}

namespace {

// gRPC puts a message into a header, where a byte that is no printable ASCII takes three, and gives
// up a call whose headers take 8 KiB: its caller would hear of that instead.
std::string ForHeader(std::string message) {
  constexpr std::size_t kMost = 6'000;
  std::size_t used = 0;
  for (std::size_t at = 0; at < message.size();) {
    const std::string_view rest = std::string_view(message).substr(at);
    const std::size_t length = std::max<std::size_t>(Utf8Length(rest), 1);
    const bool plain = rest[0] >= ' ' && rest[0] <= '~' && rest[0] != '%';
    used += plain ? 1 : 3 * length;
    if (used > kMost) {
      const std::size_t left = message.size() - at;
      message.resize(at);
      return message + fmt::format("... ({} bytes more)", left);
    }
    at += length;
  }
  return message;
}

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), ForHeader(Message(status)));
}

}  // namespace muster::services
