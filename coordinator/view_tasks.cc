// Tasks that come and go, and what the view waits for.
#include <algorithm>

#include "common/base/words.h"
#include "coordinator/model_job.h"
#include "coordinator/view.h"

namespace muster::coordinator {
Story::Fields View::FieldsOf(const Member& lost) {
  return {{"pid", std::to_string(lost.info.pid())},
          {"session", std::to_string(lost.session.value())},
          {"how", lost.how}};
}

// A task has registered, for the first time or again.
void View::OnUp(const Member& member, const Arrival& arrival) {
  if (!running()) return;
  const TaskId task = member.task;
  if (task.type == "ps") return OnServerUp(member);
  if (task.type != "worker") return;
  // What it said of its executor on the old stream may have been lost with it: it says it again.
  if (arrival.same_process && !arrival.gap) executors_.erase(task);
  if (!arrival.same_process) numbers_.erase(task);
  StartExecutors();
  UpdateCut();
  SetPace();
}

// Its daemon sees to it that its executor takes no more, when it is released.
void View::OnDraining(const TaskId&) { UpdateCut(); }

void View::OnOut(const TaskId& task) {
  if (running() && task.type == "ps") OnServerOut(task);
}

void View::OnLost(const Member& member) {
  if (!running()) return;
  if (member.task.type == "worker") {
    OnWorkerLost(member);
  } else if (member.task.type == "ps") {
    OnServerLost(member);
  }
  UpdateCut();
  TryCut();
  RefreshReason();
  SetPace();
}

// The state and the sentence that people read: the first of these that holds, what is lost before
// what was asked for, and that before what is on its way.
void View::RefreshReason() {
  if (phase_ == Phase::kStarting) {
    const std::string unfit = lasting_.fitness.Reasons(world_.members.Up("worker"));
    if (unfit.empty()) return;
    return story_.SetState(story_.record().job().state(), "NO_FIT_WORKER",
                           "no worker can start an executor; they are asked again: " + unfit);
  }
  if (!open() || judging_) return;
  const bool stopping = story_.record().stop_requested();
  if (!missing_.empty()) {
    const std::string names = Joined(missing_, kMostNamed, [](const auto& one) {
      return fmt::format("{} (lost: {})", one.first.ToString(), one.second.how);
    });
    return story_.SetState(v1::JOB_STATE_RESTORING, "WAITING_FOR_TASKS", "waiting for " + names);
  }
  if (cut_ != Cut::kNone) {
    return story_.SetState(stopping ? v1::JOB_STATE_STOPPING : v1::JOB_STATE_RUNNING, "DRAINING",
                           cut_ == Cut::kWanted
                               ? "the cluster is asked to end: saving a checkpoint"
                               : fmt::format("waits at step {}: the cluster is asked to "
                                             "end",
                                             StepsDone()));
  }
  if (const std::string waits = WaitsFor(); !waits.empty() && !stopping) {
    return story_.SetState(v1::JOB_STATE_RESTORING, "WAITING_FOR_TASKS", waits);
  }
  const bool any = std::any_of(executors_.begin(), executors_.end(),
                               [](const auto& one) { return one.second.ready; });
  const v1::JobState state = stopping ? v1::JOB_STATE_STOPPING : v1::JOB_STATE_RUNNING;
  if (any) {
    return story_.SetState(state, stopping ? "STOP_REQUESTED" : "",
                           stopping ? "saving a checkpoint, then ends" : "");
  }
  if (!world_.members.Up("worker").empty()) {
    if (const std::string unfit = lasting_.fitness.Reasons(world_.members.Up("worker"));
        !unfit.empty()) {
      return story_.SetState(state, "NO_FIT_WORKER",
                             "no worker can start an executor; they are asked again: " + unfit);
    }
    return story_.SetState(state, "STARTING_EXECUTORS",
                           "every executor was lost; new ones are started");
  }
  story_.SetState(state, "WAITING_FOR_TASKS", "waiting for " + job_.MissingTasks());
}

}  // namespace muster::coordinator
