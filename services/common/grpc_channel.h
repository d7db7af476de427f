// The client side of gRPC as all of our programs use it.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "common/base/status.h"
#include "common/tls/context.h"
#include "services/common/token.h"

namespace muster::services {

// Control messages; files travel in chunks below it.
inline constexpr int kMaxMessageBytes = 16 << 20;

// Where the coordinator is, and what a process of ours proves itself by.
struct ControlPlane {
  std::string coordinator;
  Token token;
  // Null: in the clear.
  std::shared_ptr<tls::Context> tls = nullptr;
};

// Connects when first used and again after each loss (50 ms to 2 s between attempts), by then at
// another address of its name where it has one; notices a dead peer within 4 s. Proxies of the
// environment are not used.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<tls::Context>& tls = nullptr);

// Adds the token to a call.
void Authorize(grpc::ClientContext& context, const Token& token);

// The codes are the same numbers. A message of more than some 6,000 bytes is cut, and says so.
Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const Status& status);

}  // namespace muster::services
