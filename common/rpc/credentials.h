// gRPC's credentials: in the clear, or mutual TLS by what a tls::Context has in use, also when that
// changes, without a connection or a call being dropped.
//
// A client believes a server whose certificate is of its authorities, for the host that it
// connects to, and of a node that may be the coordinator. A server believes any certificate of its
// authorities; what its holder may do is asked of each call (CallerOf).
//
// Threading: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/tls/certificate.h"
#include "common/tls/context.h"

namespace grpc {
class AuthContext;
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace muster::rpc {

// Whose certificate the control plane's server has.
inline constexpr std::string_view kCoordinatorTask = "chief:0";

// What the context has in use, and later has; null: in the clear.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    const std::shared_ptr<tls::Context>& context);
// Which calls there are (gRPC's reflection) is told to holders of a role that are on the list, if
// there is one; to others, kUnauthenticated or kPermissionDenied.
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(
    const std::shared_ptr<tls::Context>& context);

// The certificate of a connection.
struct Shown {
  tls::Holder holder;
  std::string fingerprint;
};
// Who calls, by the certificate of its connection; nothing: it came in the clear.
//   kPermissionDenied: the certificate names no role.
Result<std::optional<Shown>> CallerOf(const grpc::AuthContext& connection);

}  // namespace muster::rpc
