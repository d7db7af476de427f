// Tasks that come and go, closures.
#include <algorithm>

#include "common/base/words.h"
#include "coordinator/model_job.h"
#include "coordinator/view.h"

namespace muster::coordinator {
namespace {

// While a peer of a worker is out of reach, the worker is not given the next closure at once; the
// pause grows while that lasts.
constexpr Millis kHold{200};
constexpr Millis kLongestHold{5'000};

}  // namespace

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
  // Assignments on the old stream may have been lost with it.
  if (arrival.same_process && !arrival.gap) {
    Requeued(task, dispatcher_->RemoveWorker(task));
    executors_.erase(task);
  }
  StartExecutors();
  UpdateCut();
  Pump();
}

void View::OnDraining(const TaskId& task) {
  UpdateCut();
  if (dispatcher_ && cut_ == Cut::kNone) dispatcher_->HoldWorker(task, TimePoint::max());
}

void View::OnLost(const Member& member) {
  if (!running()) return;
  if (member.task.type == "worker") {
    OnWorkerLost(member);
  } else {
    OnServerLost(member);
  }
  UpdateCut();
  TryCut();
  RefreshReason();
  Pump();
}

// Counts it, or gives its closure out again; then whoever has waited for it goes on.
void View::OnClosureResult(const Member& member, const v1::ClosureResult& result) {
  if (!running() || result.view() != story_.plan().view()) return;
  const Dispatcher::Outcome outcome = dispatcher_->OnResult(member.task, result);
  switch (outcome) {
    case Dispatcher::Outcome::kStale:
      return;
    case Dispatcher::Outcome::kDone:
      comebacks_.erase({result.closure().kind(), result.closure().id()});
      executors_[member.task].crashes = 0;
      executors_[member.task].returned = 0;
      ++lasting_.closures_by[member.task];
      ++lasting_.settled;
      if (result.closure().kind() == v1::CLOSURE_KIND_TRAIN) {
        executors_[member.task].trained = true;
      }
      story_.record().set_steps_done(StepsDone());
      world_.marks.Set(JobNumber(story_.record().number()), ViewId(story_.plan().view()),
                       story_.record().steps_done());
      break;
    case Dispatcher::Outcome::kFailed:
      story_.Tell("CLOSURE_FAILED",
                  fmt::format("closure {} failed on {}: {}", result.closure().id(),
                              member.task.ToString(), result.status().message()),
                  &member.task, {{"closure", std::to_string(result.closure().id())}});
      break;
    case Dispatcher::Outcome::kAgain:
      OnClosureReturned(member, result);
      if (!open()) return;
      break;
  }
  if (dispatcher_->queue().idle() || dispatcher_->queue().failed()) story_.parked().Recheck();
  Pump();
  TryCut();
}

// The worker gets the next one a little later. One that has handed everything back for long gets
// another executor.
void View::OnClosureReturned(const Member& member, const v1::ClosureResult& result) {
  const TaskId task = member.task;
  const ClosureKey key{result.closure().kind(), result.closure().id()};
  Requeued(task, {key});
  const TimePoint now = world_.scheduler.Now();
  Comeback& comeback = comebacks_[key];
  if (comeback.times == 0 || !missing_.empty()) comeback = {0, lasting_.settled, now};
  ++comeback.times;
  if (const std::uint64_t others = lasting_.settled - comeback.settled_then;
      comeback.times >= kMostComebacks && others >= kManyOthers &&
      now - comeback.since >= world_.options.return_limit) {
    return job_.Fail(Unavailable(
        "closure {} has come back {} times in {} s without having run, while {} others were done; "
        "the last time from {}: {}. Submit the job again to go on from its last checkpoint",
        key.id, comeback.times, (now - comeback.since) / std::chrono::seconds(1), others,
        task.ToString(), result.status().message()));
  }
  Executor& executor = executors_[task];
  // While a server is known to be away nobody can do better.
  if (executor.returned == 0 || !missing_.empty()) executor.returning_since = now;
  const Millis hold = std::min(kLongestHold, kHold * (1 << std::min(executor.returned / 4, 5)));
  ++executor.returned;
  dispatcher_->HoldWorker(task, now + hold);
  (void)world_.scheduler.RunAfter(hold, Guard([this] { Pump(); }));
  // One event for an outage, not one for each closure that meets it.
  if (missing_.empty() && now - unreachable_told_ > std::chrono::seconds(10)) {
    unreachable_told_ = now;
    story_.Tell("PEER_UNREACHABLE",
                fmt::format("{} hands closure {} back, which runs again: {}", task.ToString(),
                            result.closure().id(), result.status().message()),
                &task, {{"closure", std::to_string(result.closure().id())}});
  }
  if (now - executor.returning_since < world_.options.return_limit) return;
  const std::string what = fmt::format(
      "{} has handed {} closures back for {} s and has done none: its executor is started again",
      task.ToString(), executor.returned, world_.options.return_limit.count() / 1000);
  story_.Tell("EXECUTOR_RESTARTED", what, &task, {{"why", result.status().message()}});
  RenewExecutor(member, what);
}

// They run again; where is told when each of them has been given out.
void View::Requeued(const TaskId& from, const std::vector<ClosureKey>& closures) {
  if (closures.empty()) return;
  v1::Job& job = *story_.record().mutable_job();
  job.set_closures_rerun(job.closures_rerun() + closures.size());
  // For a closure that was waiting already, this is the newer story.
  for (Rerun& rerun : reruns_) {
    for (const ClosureKey& key : closures) rerun.waiting.erase(key);
  }
  Rerun rerun;
  rerun.from = from;
  rerun.waiting.insert(closures.begin(), closures.end());
  rerun.count = closures.size();
  reruns_.push_back(std::move(rerun));
  if (reruns_.size() > 64) reruns_.erase(reruns_.begin());
  story_.Touch();
}

void View::SendClosure(const TaskId& task, const v1::ClosureAssignment& assignment) {
  if (!reruns_.empty()) {
    const ClosureKey key{assignment.closure().kind(), assignment.closure().id()};
    for (Rerun& rerun : reruns_) {
      if (rerun.waiting.erase(key) == 0) continue;
      rerun.placed +=
          fmt::format("{}{} on {}", rerun.placed.empty() ? "" : ", ", key.id, task.ToString());
    }
    // The event is told when the dispatcher has given everything out: TellReruns().
  }
  const Member* member = world_.members.Find(task);
  if (member == nullptr) return;  // its loss is on the way and brings the closure back
  v1::CoordinatorMessage message;
  *message.mutable_run() = assignment;
  if (assignment.closure().kind() == v1::CLOSURE_KIND_EVALUATE && WorkerLocal()) {
    GiveBuffers(task, *message.mutable_run());
  }
  member->link->Send(message);
}

void View::Pump() {
  if (!open() || judging_) return;
  dispatcher_->set_paused(waits_for_holders() || saving_ != nullptr || cut_ == Cut::kSettled);
  dispatcher_->set_draining(cut_ != Cut::kNone);
  const bool was_full = dispatcher_->queue().queued() >= world_.options.queue_capacity;
  dispatcher_->Pump();
  if (was_full) story_.parked().Recheck();
  TellReruns();
}

// Once for each lost worker, when all of its closures are given out again.
void View::TellReruns() {
  for (auto rerun = reruns_.begin(); rerun != reruns_.end();) {
    if (!rerun->waiting.empty()) {
      ++rerun;
      continue;
    }
    if (!rerun->placed.empty()) {
      story_.Tell(
          "CLOSURES_RERUN",
          fmt::format("{} of {} {} again: {}", Counted(rerun->count, "closure"),
                      rerun->from.ToString(), Agreeing(rerun->count, "runs", "run"), rerun->placed),
          &rerun->from, {{"closures", std::to_string(rerun->count)}, {"placed", rerun->placed}});
    }
    rerun = reruns_.erase(rerun);
  }
}

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
    std::string names;
    for (const auto& [task, loss] : missing_) {
      names += fmt::format("{}{} (lost: {})", names.empty() ? "" : ", ", task.ToString(), loss.how);
    }
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
