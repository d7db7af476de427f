// The executors of a job: started on each worker, watched, started again; workers that cannot.
#include <algorithm>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "coordinator/job.h"

namespace muster::coordinator {
namespace {

// How long a worker that cannot start an executor is left alone, doubled each time.
constexpr Millis kFirstPause{1'000};
constexpr Millis kLongestPause{60'000};
// Refusals for a peer's sake before they are told: most pass by themselves.
constexpr int kQuietRefusals = 4;
constexpr Millis kStopLimit{30'000};
// For the records of a closure that is given up; its verdict does not wait longer.
constexpr Millis kNameLimit{30'000};

// The same on every host: the spec, the model or the plan. What is left is the host's own: a file
// that is not there, a full disk, too many open files, a program that does not start.
bool IsUsersError(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kOutOfRange || status.code() == StatusCode::kDataLoss ||
         status.code() == StatusCode::kFailedPrecondition ||
         status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kInternal;
}

// A data file is not what it was (see StartExecutor): no worker may go on with it.
bool IsChangedData(const Status& status) {
  const std::string message = Message(status);
  return status.code() == StatusCode::kDataLoss &&
         (message.starts_with("data: ") || message.starts_with("evaluation.data: "));
}

}  // namespace

bool Job::NeedsAssign() const {
  if (HasHome() || assigned_ || record_.plan().start_step() > 0 || !restored_from_.empty())
    return false;
  return std::any_of(record_.plan().variables().begin(), record_.plan().variables().end(),
                     [](const v1::VariableLayout& variable) {
                       return variable.initializer().kind() == v1::INITIALIZER_KIND_ARCHIVE;
                     });
}

// On a host that the check has not seen: what another host has, but for the time.
v1::DataFiles Job::DataOn(const std::string& host) const {
  if (const auto found = record_.data().find(host); found != record_.data().end()) {
    return found->second;
  }
  if (record_.data().empty()) return {};
  v1::DataFiles data = record_.data().begin()->second;
  for (v1::DataFile& file : *data.mutable_training()) file.clear_mtime_ns();
  for (v1::DataFile& file : *data.mutable_evaluation()) file.clear_mtime_ns();
  return data;
}

bool Job::IsPausing(const TaskId& worker) const {
  const auto found = unfit_.find(worker);
  return found != unfit_.end() && world_.scheduler.Now() < found->second.until;
}

void Job::StartExecutors() {
  if (phase_ != Phase::kStarting && phase_ != Phase::kOpen) return;
  if (HasHome()) return StartHome();
  for (const Member* worker : world_.members.Up("worker")) {
    const auto found = executors_.find(worker->task);
    if (found != executors_.end() && found->second.session == worker->session) continue;
    // One worker gives the archive's values to the servers before any other may start.
    if (NeedsAssign() && assigner_) continue;
    if (IsPausing(worker->task)) continue;
    StartExecutor(*worker);
  }
  RefreshReason();
}

void Job::StartExecutor(const Member& member) {
  Executor& executor = executors_[member.task];
  executor.session = member.session;
  executor.ready = false;
  executor.trained = false;
  executor.buffers = 0;
  v1::Command command;
  v1::StartExecutor& start = *command.mutable_start_executor();
  *start.mutable_plan() = record_.plan();
  *start.mutable_spec() = record_.job().spec();
  if (WorkerLocal() && buffers_.tensors_size() > 0) *start.mutable_buffers() = buffers_;
  *start.mutable_data() = DataOn(member.info.hostname());
  if (HasHome()) start.set_restore_from(restored_from_);
  if (NeedsAssign()) {
    assigner_ = member.task;
    start.set_assign_initial_values(true);
  }
  world_.commands.Send(member, command, world_.options.command_limit,
                       Guard([this, task = member.task, session = member.session](auto result) {
                         OnExecutorAnswer(task, session, result.status());
                       }));
}

void Job::StopExecutor(const Member& member) {
  v1::Command command;
  v1::StopExecutor& stop = *command.mutable_stop_executor();
  stop.set_job_id(id());
  stop.set_epoch(world_.epoch.value());
  stop.set_view(record_.plan().view());
  world_.commands.Send(member, command, kStopLimit, [](auto) {});
}

void Job::OnExecutorAnswer(const TaskId& task, SessionId session, const Status& status) {
  const auto found = executors_.find(task);
  if (found == executors_.end() || found->second.session != session) return;
  if (status.ok()) return OnExecutorReady(task);
  if (assigner_ == task) assigner_.reset();
  if (IsChangedData(status)) return Refuse(Annotate(status, "executor on " + task.ToString()));
  if (HasHome() && status.code() == StatusCode::kDataLoss && !restored_from_.empty()) {
    MarkRefused({restored_from_, StepOfDirectory(restored_from_), Message(status)});
    return BeginView();
  }
  if (IsTransient(status.code())) {
    RestartExecutorLater(task, ++found->second.crashes);
    Unfit& unfit = unfit_[task];
    unfit.why = status;
    if (++unfit.refusals == kQuietRefusals) {
      Tell("WORKER_UNFIT",
           fmt::format("{} could not start an executor {} times; it goes on trying: {}",
                       task.ToString(), unfit.refusals, Message(status)),
           &task, {{"code", std::string(CodeName(status.code()))}});
    }
    return RefreshReason();
  }
  LeaveOut(task, status);
}

void Job::LeaveOut(const TaskId& task, const Status& why) {
  executors_.erase(task);
  if (assigner_ == task) assigner_.reset();
  Unfit& unfit = unfit_[task];
  const bool told = unfit.left_out && Message(unfit.why) == Message(why);
  const Millis pause = std::min(kLongestPause, kFirstPause * (1 << std::min(unfit.refusals, 6)));
  unfit.why = why;
  unfit.left_out = true;
  ++unfit.refusals;
  unfit.until = world_.scheduler.Now() + pause;
  if (!told) {
    Tell("WORKER_UNFIT",
         fmt::format("{} cannot start an executor and is left out of this job: {}; it is asked "
                     "again in {} s, then less often",
                     task.ToString(), Message(why), pause.count() / 1000),
         &task, {{"code", std::string(CodeName(why.code()))}});
  }
  if (AllRefuse()) {
    const Status status = Annotate(why, "executor on " + task.ToString());
    return why.code() == StatusCode::kInternal ? Fail(status) : Refuse(status);
  }
  if (HasHome()) {
    if (phase_ == Phase::kOpen) return EndView("WORKER_UNFIT", Message(why));
    home_.reset();
    home_pid_ = 0;
  }
  (void)world_.scheduler.RunAfter(pause, Guard([this] { StartExecutors(); }));
  StartExecutors();
}

bool Job::AllRefuse() const {
  const std::vector<const Member*> workers = world_.members.Up("worker");
  return std::all_of(workers.begin(), workers.end(), [this](const Member* worker) {
    const auto found = unfit_.find(worker->task);
    return found != unfit_.end() && found->second.left_out && IsUsersError(found->second.why);
  });
}

std::string Job::UnfitWorkers() const {
  std::string text;
  for (const Member* worker : world_.members.Up("worker")) {
    const auto found = unfit_.find(worker->task);
    if (found == unfit_.end() || found->second.why.ok()) return {};
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", worker->task.ToString(),
                        Message(found->second.why));
  }
  return text;
}

void Job::OnExecutorReady(const TaskId& task) {
  const auto found = executors_.find(task);
  if (found == executors_.end() || found->second.ready) return;
  found->second.ready = true;
  unfit_.erase(task);
  dispatcher_->AddWorker(task);
  if (assigner_ == task) {
    assigned_ = true;
    assigner_.reset();
    StartExecutors();
  }
  if (phase_ == Phase::kStarting) OpenView();
  RefreshReason();
  Pump();
}

void Job::OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event) {
  if (phase_ != Phase::kStarting && phase_ != Phase::kOpen) return;
  if (event.view() != record_.plan().view()) return;
  const auto found = executors_.find(member.task);
  if (found == executors_.end() || found->second.session != member.session) return;
  if (HomeReplaced(member.task, event)) {
    return OnHomeGone("EXECUTOR_LOST",
                      fmt::format("the executor of {} (process {}) is another one now: the job's "
                                  "variables ended with the one before it",
                                  member.task.ToString(), event.pid()),
                      {}, Dispatcher::Cause::kOutside);
  }
  switch (event.kind()) {
    case v1::ExecutorEvent::KIND_STARTED:
      found->second.pid = event.pid();
      break;
    case v1::ExecutorEvent::KIND_READY:
      found->second.pid = event.pid();
      OnExecutorReady(member.task);
      break;
    case v1::ExecutorEvent::KIND_EXITED:
      OnExecutorGone(member, event);
      break;
    default:
      break;
  }
}

void Job::OnExecutorGone(const Member& member, const v1::ExecutorEvent& event) {
  const TaskId task = member.task;
  Executor& executor = executors_[task];
  const bool was_ready = executor.ready;
  executor.pid = 0;
  if (assigner_ == task) assigner_.reset();
  std::vector<std::string> lines(event.last_lines().begin(), event.last_lines().end());
  if (lines.empty()) lines = world_.logs.Last(id(), task.ToString());
  const auto cause = event.from_outside() ? Dispatcher::Cause::kOutside
                     : event.stuck()      ? Dispatcher::Cause::kEndless
                                          : Dispatcher::Cause::kItself;
  const Dispatcher::Crash crash = dispatcher_->CrashWorker(task, event.how(), cause);
  const std::string reason = event.stuck() ? "EXECUTOR_STUCK" : "EXECUTOR_LOST";
  const std::string what =
      fmt::format("the executor of {} (process {}) {} by {}", task.ToString(), event.pid(),
                  event.stuck() ? "was killed" : "ended", event.how());
  Tell(reason,
       HasHome()
           ? what + "; the job's variables ended with it"
           : fmt::format("{}; {} it had {} again", what, Counted(crash.requeued.size(), "closure"),
                         Agreeing(crash.requeued.size(), "runs", "run")),
       &task,
       {{"pid", std::to_string(event.pid())},
        {"how", event.how()},
        {"closures", Ids(crash.requeued)}},
       lines);
  // In an open view it had the variables, also when its worker has just come back without it.
  if (HasHome() && (was_ready || phase_ == Phase::kOpen)) {
    return OnHomeGone(reason, what, crash.requeued, cause);
  }
  Requeued(task, crash.requeued);
  if (crash.poison) return GiveUp(*crash.poison, task, lines);
  home_pid_ = 0;
  if (!was_ready && cause != Dispatcher::Cause::kOutside &&
      ++unfit_[task].crashes >= world_.options.executor_limit) {
    return LeaveOut(task, Internal("its executors end before they are ready, {} times until now, "
                                   "the last one by {}",
                                   unfit_[task].crashes, event.how()));
  }
  RestartExecutorLater(task, ++executor.crashes);
  RefreshReason();
  Pump();
}

void Job::RestartExecutorLater(const TaskId& task, int crashes) {
  Executor& executor = executors_[task];
  executor.ready = false;
  // Its end is told by an event and by the answer to the command.
  if (std::exchange(executor.restart_planned, true)) return;
  const SessionId session = executor.session;
  const Millis delay{std::min(5'000, 100 << std::min(crashes, 6))};
  (void)world_.scheduler.RunAfter(
      delay, Guard([this, task, session] {
        const auto found = executors_.find(task);
        if (found == executors_.end() || found->second.session != session) return;
        found->second.restart_planned = false;
        const Member* member = world_.members.Find(task);
        if (found->second.ready || member == nullptr || member->session != session ||
            member->state != Member::State::kUp) {
          return;
        }
        // Another one gives the initial values just now: this one follows it.
        if (NeedsAssign() && assigner_) {
          executors_.erase(found);
          return;
        }
        StartExecutor(*member);
      }));
}

void Job::GiveUp(const Dispatcher::Verdict& verdict, const TaskId& task,
                 const std::vector<std::string>& lines) {
  if (std::exchange(judging_, true)) return;
  const auto end = [this, verdict, task, lines](const std::string& records) {
    const Status poison = Internal(
        "{}: it would do so for ever. {}. The executor's last lines are in the job's events",
        verdict.why, records);
    Tell("POISON_CLOSURE", Message(poison), task.type.empty() ? nullptr : &task,
         {{"closure", std::to_string(verdict.closure.id)}, {"records", records}}, lines);
    Fail(poison);
  };
  const std::vector<const Member*> workers = world_.members.Up("worker");
  if (workers.empty() || verdict.closure.kind == v1::CLOSURE_KIND_UNSPECIFIED) {
    return end("Which records it has is not known");
  }
  SetState(record_.job().state(), "POISON_CLOSURE", verdict.why + "; looks up its records");
  v1::Command command;
  v1::ProbeData& probe = *command.mutable_probe_data();
  *probe.mutable_spec() = record_.job().spec();
  probe.mutable_closure()->set_kind(verdict.closure.kind);
  probe.mutable_closure()->set_id(verdict.closure.id);
  world_.commands.Send(
      *workers.front(), command, kNameLimit, Guard([end](Result<v1::CommandResult> result) {
        if (!result.ok()) {
          return end(fmt::format("Which records it has could not be found out ({})",
                                 Message(result.status())));
        }
        const std::string& records = result->probe().records();
        end(records.empty() ? "Which records it has is not known" : "Its batch: " + records);
      }));
}

}  // namespace muster::coordinator
