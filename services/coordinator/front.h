// How a gRPC call becomes a call of the coordinator: it is authorised where it arrives, then
// carried to the strand that owns the coordinator, and answered from there.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "common/base/scheduler.h"
#include "common/rpc/version_key.h"
#include "coordinator/coordinator.h"
#include "services/common/grpc_channel.h"
#include "services/common/grpc_server.h"

namespace muster::coordinator {

// Threading: `core` is read and cleared on the strand only. Lifetime: outlives the gRPC server.
struct Front {
  Scheduler& strand;
  // Null once the daemon shuts down: calls are then answered kUnavailable.
  Coordinator* core = nullptr;
  // Who calls, if it may do what that role may. Errors of services::CheckCaller.
  std::function<Result<services::Caller>(const grpc::ServerContextBase&, tls::Role least)>
      authorize;
  // Whether one whose call goes on may still. Errors of services::CheckStillAllowed.
  std::function<Status(const services::Caller&)> still_allowed;
  // Writes down who did what with which job. On the strand.
  std::function<void(const services::Caller& who, std::string_view did, const std::string& what)>
      audit;
  // For what blocks on a disk.
  LaneOffload& disks;
  // How long the peer of a stream may stand still before the stream is ended.
  Millis stall_limit{60'000};
  // Said with each answer of a unary call; daemons of another major version are refused.
  std::string version = {};
  // What was logged of daemons of another minor one. On the strand.
  std::set<std::string> told_of_versions = {};

  static Status Closing() {
    return Unavailable("the coordinator is shutting down; try again when it is back");
  }
};

// The one answer of a unary call. Dropping it unanswered (a call that waited when the coordinator
// was shut down) answers kUnavailable.
template <class Reply>
class Responder {
 public:
  Responder(grpc::ServerUnaryReactor* reactor, Reply* reply) : reactor_(reactor), reply_(reply) {}
  ~Responder() { Finish(Front::Closing()); }
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;

  void Answer(Result<Reply> result) {
    if (reactor_ == nullptr) return;
    if (result.ok()) *reply_ = std::move(*result);
    Finish(result.status());
  }

 private:
  void Finish(const Status& status) {
    if (reactor_ != nullptr) std::exchange(reactor_, nullptr)->Finish(services::ToGrpc(status));
  }
  grpc::ServerUnaryReactor* reactor_;
  Reply* reply_;
};

// `call` runs on the strand as call(core, then), or call(core, caller, then), for callers that may
// do what `least` may.
template <class Reply, class Call>
grpc::ServerUnaryReactor* Serve(Front& front, grpc::CallbackServerContext* context, tls::Role least,
                                Reply* reply, Call call) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!front.version.empty()) context->AddInitialMetadata(rpc::kVersionKey, front.version);
  const auto caller = front.authorize(*context, least);
  if (!caller.ok()) {
    reactor->Finish(services::ToGrpc(caller.status()));
    return reactor;
  }
  auto responder = std::make_shared<Responder<Reply>>(reactor, reply);
  front.strand.Post([&front, responder = std::move(responder), call = std::move(call),
                     caller = *caller]() mutable {
    if (front.core == nullptr) return;
    // The responder dies with the last copy of this function.
    auto then = [responder](Result<Reply> result) { responder->Answer(std::move(result)); };
    if constexpr (std::is_invocable_v<Call&, Coordinator&, const services::Caller&,
                                      decltype(then)>) {
      call(*front.core, caller, std::move(then));
    } else {
      call(*front.core, std::move(then));
    }
  });
  return reactor;
}

}  // namespace muster::coordinator
