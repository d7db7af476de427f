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
#include "services/coordinator/audit_trail.h"

namespace muster::coordinator {

// Threading: `core` is read and cleared on the strand only. Lifetime: outlives the gRPC server.
struct Front {
  Scheduler& strand;
  // Null once the daemon shuts down: calls are then answered kUnavailable.
  Coordinator* core = nullptr;
  // Who calls, if it may do what that role may. Errors of services::CheckCaller.
  std::function<Result<services::Caller>(const grpc::ServerContextBase&, tls::Role least)>
      check_caller;
  // Whether one whose call goes on may still. Errors of services::CheckStillAllowed.
  std::function<Status(const services::Caller&)> still_allowed;
  AuditTrail& audit;
  // For what blocks on a disk.
  LaneOffload& disks;
  // How long the peer of a stream may stand still before the stream is ended.
  Millis stall_limit{60'000};
  // Said with each answer of a unary call; daemons of another major version are refused.
  std::string version = {};
  // What was logged of daemons of another minor one. On the strand.
  std::set<std::string> told_of_versions = {};

  // check_caller, and writes down who was refused; `did`: what the call does. Any thread.
  Result<services::Caller> Authorize(const grpc::ServerContextBase& context, tls::Role least,
                                     std::string_view did) const {
    Result<services::Caller> caller = check_caller(context, least);
    if (!caller.ok()) audit.Look(services::CallerName(context), did, "", caller.status());
    return caller;
  }
  // `why`, written down.
  Status Refuse(const std::string& who, std::string_view did, std::string_view what,
                Status why) const {
    audit.Look(who, did, what, why);
    return why;
  }
  // The job that somebody wants to look at, which is written down. On the strand.
  Result<Job*> Look(const services::Caller& caller, std::string_view did,
                    const std::string& job) const {
    const Result<Job*> found = core->Find(job);
    audit.Look(caller.ToString(), did, found.ok() ? (*found)->id() : job, found.status());
    return found;
  }

  static Status Closing() {
    return Unavailable("the coordinator is shutting down; try again when it is back");
  }
};

// What a disk of the coordinator's host answers, for who asked: that it refuses the coordinator is
// no question of their token or role, and that the state directory has gone is no name of theirs.
inline Status OfDisk(const Status& status) {
  if (status.code() != StatusCode::kPermissionDenied && status.code() != StatusCode::kNotFound) {
    return status;
  }
  return FailedPrecondition("{}", Message(status));
}

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
// do what `least` may; `did` is how the audit log calls what others were refused.
template <class Reply, class Call>
grpc::ServerUnaryReactor* Serve(Front& front, grpc::CallbackServerContext* context, tls::Role least,
                                std::string_view did, Reply* reply, Call call) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!front.version.empty()) context->AddInitialMetadata(rpc::kVersionKey, front.version);
  const auto caller = front.Authorize(*context, least, did);
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

// `then`, after what the caller is answered has been written down. `what_of`: what the reply says
// was changed; where there is no reply, `what`.
template <class Reply, class Then, class WhatOf>
std::function<void(Result<Reply>)> Recorded(Front& front, const services::Caller& caller,
                                            std::string_view did, std::string what, Then then,
                                            WhatOf what_of) {
  return [&front, who = caller.ToString(), did, what = std::move(what), then = std::move(then),
          what_of = std::move(what_of)](Result<Reply> result) mutable {
    front.audit.Change(who, did, result.ok() ? what_of(*result) : what, result.status());
    then(std::move(result));
  };
}
template <class Reply, class Then>
std::function<void(Result<Reply>)> Recorded(Front& front, const services::Caller& caller,
                                            std::string_view did, const std::string& what,
                                            Then then) {
  return Recorded<Reply>(front, caller, did, what, std::move(then),
                         [what](const Reply&) { return what; });
}

}  // namespace muster::coordinator
