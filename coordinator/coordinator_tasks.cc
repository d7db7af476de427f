// Tasks that operators take out of work, and let in again.
#include <utility>

#include "common/base/wall_time.h"
#include "common/base/words.h"
#include "coordinator/coordinator.h"

namespace muster::coordinator {
namespace {

// With the disk's own code: who asks is told of a full disk, not of a coordinator that is away.
muster::Status NotWritten(const TaskId& task, const muster::Status& why) {
  return MakeStatus(why.code(),
                    fmt::format("{} stays as it was, since the coordinator cannot write that down: "
                                "{}",
                                task.ToString(), Message(why)));
}

}  // namespace

muster::Status Coordinator::CheckKnown(const TaskId& task) const {
  if (task.type == "chief") {
    return InvalidArgument(
        "{} is the coordinator itself: it is asked to end by SIGTERM (`systemctl stop "
        "muster-coordinator`), saves running jobs, and they go on when it is back",
        task.ToString());
  }
  if (members_.Knows(task)) return Ok();
  const std::vector<v1::TaskState> tasks = members_.Describe();
  return NotFound(
      "there is no task {} in this cluster; it has {}", task.ToString(),
      tasks.empty() ? "none yet" : Joined(tasks, kMostNamed, [](const v1::TaskState& state) {
        return FromProto(state.task()).ToString();
      }));
}

v1::TaskState Coordinator::StateOf(const TaskId& task) const {
  v1::TaskState state = members_.Describe(task);
  const Member* const member = members_.Find(task);
  if (member == nullptr || member->state != Member::State::kDraining) return state;
  for (const auto& [number, job] : jobs_) {
    if (!job->ended() && !job->MayLeave(*member)) state.add_held_by(job->record().job().name());
  }
  return state;
}

void Coordinator::TakeOut(const TaskId& task, const std::string& by,
                          std::function<void(Result<v1::DrainTaskReply>)> then) {
  if (const muster::Status known = CheckKnown(task); !known.ok()) return then(known);
  if (members_.Out(task) != nullptr) {
    v1::DrainTaskReply reply;
    *reply.mutable_task() = StateOf(task);
    reply.set_existing(true);
    return then(std::move(reply));
  }
  v1::TakenOut record;
  *record.mutable_task() = ToProto(task);
  if (const Member* const member = members_.Find(task)) record.set_boot_id(member->info.boot_id());
  record.set_since_ms(UnixMillis(parts_.scheduler.WallNow()));
  record.set_by(by);
  // First on disk: a coordinator that begins in this moment must know whom it need not wait for.
  parts_.journal.SaveTakenOut(record, [this, here = lifeline_.Watch(), task, record,
                                       then = std::move(then)](const muster::Status& written) {
    if (!here()) return then(Unavailable("the coordinator has ended"));
    if (!written.ok()) return then(NotWritten(task, written));
    members_.TakeOut(record);
    if (members_.IsOut(task)) OnOut(task);
    v1::DrainTaskReply reply;
    *reply.mutable_task() = StateOf(task);
    then(std::move(reply));
  });
}

void Coordinator::LetIn(const TaskId& task,
                        std::function<void(Result<v1::UndrainTaskReply>)> then) {
  if (const muster::Status known = CheckKnown(task); !known.ok()) return then(known);
  if (members_.Out(task) == nullptr) {
    v1::UndrainTaskReply reply;
    *reply.mutable_task() = StateOf(task);
    reply.set_existing(true);
    return then(std::move(reply));
  }
  letting_in_.insert(task);
  parts_.journal.DeleteTakenOut(ToProto(task),
                                [this, here = lifeline_.Watch(), task,
                                 then = std::move(then)](const muster::Status& written) {
                                  if (!here())
                                    return then(Unavailable("the coordinator has ended"));
                                  letting_in_.erase(task);
                                  if (!written.ok()) return then(NotWritten(task, written));
                                  (void)members_.LetIn(task);
                                  v1::UndrainTaskReply reply;
                                  *reply.mutable_task() = StateOf(task);
                                  then(std::move(reply));
                                });
}

void Coordinator::OnHeld(const Member& member) {
  TellOf(member, "has registered, and is held: it was taken out of work");
  OnOut(member.task);
}

void Coordinator::OnOut(const TaskId& task) {
  const v1::TakenOut* const out = members_.Out(task);
  // Should that not get onto the disk, a restart waits for its process, or for --ps-wait. Behind
  // the end of its row it would be taken out again after one.
  if (out != nullptr && !letting_in_.contains(task)) {
    parts_.journal.SaveTakenOut(*out, [](const muster::Status&) {});
  }
  for (const auto& [number, job] : jobs_) job->OnOut(task);
  AdmitJobs();
}

}  // namespace muster::coordinator
