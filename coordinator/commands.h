// Commands to daemons that have been sent and not answered.
//
// Each is answered exactly once: by the daemon, by the end of its session (kUnavailable), or by its
// time limit (kDeadlineExceeded), which counts from the last sign that it gets on. Threading: one
// strand. Lifetime: `scheduler` outlives it.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "coordinator/membership.h"
#include "muster/v1/cluster.pb.h"

namespace muster::coordinator {

class Commands {
 public:
  // The result's own status is OK: a daemon's error arrives as this Result's error.
  using Reply = std::function<void(Result<v1::CommandResult>)>;

  explicit Commands(Scheduler& scheduler) : scheduler_(scheduler) {}
  ~Commands();

  // `reply` never runs inside this call.
  void Send(const Member& member, v1::Command command, Millis limit, Reply reply);
  void OnResult(SessionId session, v1::CommandResult result);
  // The session's daemon gets on with it: its time begins anew.
  void Renew(SessionId session, CommandId id);
  void OnSessionEnded(SessionId session, const std::string& why);

 private:
  struct Pending {
    SessionId session;
    TaskId task;
    Reply reply;
    Millis limit{0};
    Scheduler::TimerId timer = 0;
  };
  void SetTimer(CommandId id, Pending& pending);
  void Answer(CommandId id, Result<v1::CommandResult> result);

  Scheduler& scheduler_;
  std::map<CommandId, Pending> pending_;
  CommandId last_id_;
};

}  // namespace muster::coordinator
