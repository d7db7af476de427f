// Workers that come and go, parameter servers, closures.
#include <algorithm>

#include "common/base/words.h"
#include "coordinator/job.h"

namespace muster::coordinator {
namespace {

// While a peer of a worker is out of reach, the worker is not given the next closure at once; the
// pause grows while that lasts.
constexpr Millis kHold{200};
constexpr Millis kLongestHold{5'000};

std::string Gap(const Arrival& arrival) {
  return arrival.gap
             ? fmt::format(" after {:.1f} s", static_cast<double>(arrival.gap->count()) / 1000)
             : std::string();
}

}  // namespace

void Job::OnUp(const Member& member, const Arrival& arrival) {
  if (ended()) return;
  const bool open = phase_ == Phase::kOpen || phase_ == Phase::kStarting;
  const TaskId task = member.task;
  Fields fields{{"pid", std::to_string(member.info.pid())},
                {"session", std::to_string(member.session.value())},
                {"same_process", arrival.same_process ? "true" : "false"}};
  if (arrival.gap) fields.emplace_back("gap_ms", std::to_string(arrival.gap->count()));
  if (arrival.gap && record_.plan().view() > 0) {
    Tell(task.type == "ps" ? "PS_BACK" : "WORKER_BACK",
         fmt::format("{} is back as process {}{}{}", task.ToString(), member.info.pid(),
                     Gap(arrival),
                     arrival.same_process ? "; it is the same process, with its memory" : ""),
         &task, fields);
  }
  // Whoever started it anew may have mended what was wrong there.
  if (!arrival.same_process) unfit_.erase(task);
  if (task.type == "worker" && open) {
    // Assignments on the old stream may have been lost with it.
    if (arrival.same_process && !arrival.gap) {
      Requeued(task, dispatcher_->RemoveWorker(task));
      executors_.erase(task);
    }
    StartExecutors();
    UpdateCut();
    Pump();
  }
  if (task.type == "ps" && open) {
    const auto planned = std::find_if(
        record_.plan().ps().begin(), record_.plan().ps().end(),
        [&](const v1::PsAddress& ps) { return static_cast<int>(ps.index()) == task.index; });
    if (planned == record_.plan().ps().end()) return;
    missing_ps_.erase(task);
    if (planned->boot_id() != member.info.boot_id()) {
      return EndView("PS_LOST",
                     fmt::format("{} is another process now (pid {}): its memory was lost",
                                 task.ToString(), member.info.pid()));
    }
    RefreshReason();
    Pump();
  }
  Advance();
}

void Job::OnLost(const Member& member) {
  if (ended()) return;
  const TaskId task = member.task;
  if (phase_ != Phase::kOpen && phase_ != Phase::kStarting) return RefreshReason();
  const Fields fields{{"pid", std::to_string(member.info.pid())},
                      {"session", std::to_string(member.session.value())},
                      {"how", member.how}};
  const std::vector<std::string> lines = world_.logs.Last(id(), task.ToString());
  if (task.type == "worker") {
    if (HasHome() && home_ != task) return RefreshReason();
    const std::vector<ClosureKey> closures = dispatcher_->RemoveWorker(task);
    Fields more = fields;
    more.emplace_back("closures", Ids(closures));
    if (HasHome()) {
      const std::string what = fmt::format("{} (process {}) was lost with the job's variables: {}",
                                           task.ToString(), member.info.pid(), member.how);
      Tell("WORKER_LOST", what, &task, more, lines);
      return OnHomeGone("WORKER_LOST", what, {}, Dispatcher::Cause::kOutside);
    }
    Tell("WORKER_LOST",
         fmt::format("{} (process {}) was lost: {}; {} it had {} to others", task.ToString(),
                     member.info.pid(), member.how, Counted(closures.size(), "closure"),
                     Agreeing(closures.size(), "goes", "go")),
         &task, more, lines);
    executors_.erase(task);
    if (assigner_ == task) {
      assigner_.reset();
      StartExecutors();
    }
    Requeued(task, closures);
  } else {
    const bool planned =
        std::any_of(record_.plan().ps().begin(), record_.plan().ps().end(),
                    [&](const auto& ps) { return static_cast<int>(ps.index()) == task.index; });
    if (!planned) return;
    missing_ps_[task] = {member.session, member.how};
    Tell("PS_LOST",
         fmt::format("{} (process {}) was lost: {}; the job waits for it", task.ToString(),
                     member.info.pid(), member.how),
         &task, fields, lines);
    // With ps_wait over, its process will hardly come back: make do with the others, if there are.
    (void)world_.scheduler.RunAfter(
        world_.options.ps_wait, Guard([this, task, session = member.session] {
          // It may have come back and been lost again: that loss has a timer of its own.
          const auto missing = missing_ps_.find(task);
          if (missing == missing_ps_.end() || missing->second.session != session) return;
          replan_ = !SpecNamesPs();
          EndView("PS_LOST", fmt::format("{} was lost and has not come back for {} s",
                                         task.ToString(), world_.options.ps_wait.count() / 1000));
        }));
  }
  UpdateCut();
  TryCut();
  RefreshReason();
  Pump();
}

bool Job::Uses(const TaskId& ps, std::uint64_t view) const {
  if (ended() || view != record_.plan().view()) return false;
  return std::any_of(
      record_.plan().ps().begin(), record_.plan().ps().end(),
      [&](const v1::PsAddress& one) { return static_cast<int>(one.index()) == ps.index; });
}

void Job::OnClosureResult(const Member& member, const v1::ClosureResult& result) {
  if (!dispatcher_ || result.view() != record_.plan().view()) return;
  const Dispatcher::Outcome outcome = dispatcher_->OnResult(member.task, result);
  switch (outcome) {
    case Dispatcher::Outcome::kStale:
      return;
    case Dispatcher::Outcome::kDone:
      executors_[member.task].crashes = 0;
      executors_[member.task].returned = 0;
      ++closures_by_[member.task];
      ++settled_;
      if (result.closure().kind() == v1::CLOSURE_KIND_TRAIN) {
        executors_[member.task].trained = true;
      }
      record_.set_steps_done(StepsDone());
      world_.marks.Set(record_.number(), record_.plan().view(), record_.steps_done());
      break;
    case Dispatcher::Outcome::kFailed:
      Tell("CLOSURE_FAILED",
           fmt::format("closure {} failed on {}: {}", result.closure().id(), member.task.ToString(),
                       result.status().message()),
           &member.task, {{"closure", std::to_string(result.closure().id())}});
      break;
    case Dispatcher::Outcome::kAgain:
      OnClosureReturned(member, result);
      if (phase_ != Phase::kOpen) return;
      break;
  }
  if (dispatcher_->queue().idle() || dispatcher_->queue().failed()) parked_.Recheck();
  Pump();
  TryCut();
}

void Job::OnClosureReturned(const Member& member, const v1::ClosureResult& result) {
  const TaskId task = member.task;
  Requeued(task, {{result.closure().kind(), result.closure().id()}});
  const TimePoint now = world_.scheduler.Now();
  Executor& executor = executors_[task];
  // While a server is known to be away nobody can do better.
  if (executor.returned == 0 || !missing_ps_.empty()) executor.returning_since = now;
  const Millis hold = std::min(kLongestHold, kHold * (1 << std::min(executor.returned / 4, 5)));
  ++executor.returned;
  dispatcher_->HoldWorker(task, now + hold);
  (void)world_.scheduler.RunAfter(hold, Guard([this] { Pump(); }));
  // One event for an outage, not one for each closure that meets it.
  if (missing_ps_.empty() && now - unreachable_told_ > std::chrono::seconds(10)) {
    unreachable_told_ = now;
    Tell("PEER_UNREACHABLE",
         fmt::format("{} hands closure {} back, which runs again: {}", task.ToString(),
                     result.closure().id(), result.status().message()),
         &task, {{"closure", std::to_string(result.closure().id())}});
  }
  if (now - executor.returning_since < world_.options.return_limit) return;
  const std::string what = fmt::format(
      "{} has handed {} closures back for {} s and has done none: its executor is started again",
      task.ToString(), executor.returned, world_.options.return_limit.count() / 1000);
  Tell("EXECUTOR_RESTARTED", what, &task, {{"why", result.status().message()}});
  if (HasHome()) return EndView("EXECUTOR_RESTARTED", what);
  Requeued(task, dispatcher_->RemoveWorker(task));
  StopExecutor(member);
  executor.returned = 0;
  RestartExecutorLater(task, ++executor.crashes);
  RefreshReason();
}

void Job::Requeued(const TaskId& from, const std::vector<ClosureKey>& closures) {
  if (closures.empty()) return;
  v1::Job& job = *record_.mutable_job();
  job.set_closures_rerun(job.closures_rerun() + closures.size());
  // Of a closure that was waiting already, this is the newer story.
  for (Rerun& rerun : reruns_) {
    for (const ClosureKey& key : closures) rerun.waiting.erase(key);
  }
  Rerun rerun;
  rerun.from = from;
  rerun.waiting.insert(closures.begin(), closures.end());
  rerun.count = closures.size();
  reruns_.push_back(std::move(rerun));
  if (reruns_.size() > 64) reruns_.erase(reruns_.begin());
  Touch();
}

void Job::SendClosure(const TaskId& task, const v1::ClosureAssignment& assignment) {
  if (!reruns_.empty()) {
    const ClosureKey key{assignment.closure().kind(), assignment.closure().id()};
    for (Rerun& rerun : reruns_) {
      if (rerun.waiting.erase(key) == 0) continue;
      rerun.placed +=
          fmt::format("{}{} on {}", rerun.placed.empty() ? "" : ", ", key.id, task.ToString());
    }
    // Events are told outside of Pump(): see there.
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

void Job::Pump() {
  if (phase_ != Phase::kOpen || judging_) return;
  dispatcher_->set_paused(!missing_ps_.empty() || saving_ != nullptr || cut_ == Cut::kSettled);
  dispatcher_->set_draining(cut_ != Cut::kNone);
  const bool was_full = dispatcher_->queue().queued() >= world_.options.queue_capacity;
  dispatcher_->Pump();
  if (was_full) parked_.Recheck();
  for (auto rerun = reruns_.begin(); rerun != reruns_.end();) {
    if (!rerun->waiting.empty()) {
      ++rerun;
      continue;
    }
    if (!rerun->placed.empty()) {
      Tell(
          "CLOSURES_RERUN",
          fmt::format("{} of {} {} again: {}", Counted(rerun->count, "closure"),
                      rerun->from.ToString(), Agreeing(rerun->count, "runs", "run"), rerun->placed),
          &rerun->from, {{"closures", std::to_string(rerun->count)}, {"placed", rerun->placed}});
    }
    rerun = reruns_.erase(rerun);
  }
}

// What a running job waits for, if it does.
void Job::RefreshReason() {
  if (phase_ == Phase::kStarting) {
    const std::string unfit = UnfitWorkers();
    if (unfit.empty()) return;
    return SetState(record_.job().state(), "NO_FIT_WORKER",
                    "no worker can start an executor; they are asked again: " + unfit);
  }
  if (phase_ != Phase::kOpen || judging_) return;
  const bool stopping = record_.stop_requested();
  if (!missing_ps_.empty()) {
    std::string names;
    for (const auto& [task, loss] : missing_ps_) {
      names += fmt::format("{}{} (lost: {})", names.empty() ? "" : ", ", task.ToString(), loss.how);
    }
    return SetState(v1::JOB_STATE_RESTORING, "WAITING_FOR_TASKS", "waiting for " + names);
  }
  if (cut_ != Cut::kNone) {
    return SetState(stopping ? v1::JOB_STATE_STOPPING : v1::JOB_STATE_RUNNING, "DRAINING",
                    cut_ == Cut::kWanted ? "the cluster is asked to end: saving a checkpoint"
                                         : fmt::format("waits at step {}: the cluster is asked to "
                                                       "end",
                                                       StepsDone()));
  }
  const bool any = std::any_of(executors_.begin(), executors_.end(),
                               [](const auto& one) { return one.second.ready; });
  const v1::JobState state = stopping ? v1::JOB_STATE_STOPPING : v1::JOB_STATE_RUNNING;
  if (any) {
    return SetState(state, stopping ? "STOP_REQUESTED" : "",
                    stopping ? "saving a checkpoint, then ends" : "");
  }
  if (!world_.members.Up("worker").empty()) {
    if (const std::string unfit = UnfitWorkers(); !unfit.empty()) {
      return SetState(state, "NO_FIT_WORKER",
                      "no worker can start an executor; they are asked again: " + unfit);
    }
    return SetState(state, "STARTING_EXECUTORS", "every executor was lost; new ones are started");
  }
  SetState(state, "WAITING_FOR_TASKS", "waiting for " + MissingTasks());
}

}  // namespace muster::coordinator
