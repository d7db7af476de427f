// The executors of a job: started on each worker, watched, started again; workers that cannot.
#include <algorithm>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "coordinator/model_job.h"
#include "coordinator/view.h"

namespace muster::coordinator {
namespace {

constexpr Millis kStopLimit{30'000};
// For the records of a closure that is given up; its verdict does not wait longer.
constexpr Millis kNameLimit{30'000};

// A data file is not what it was (see StartExecutor): no worker may go on with it.
bool IsChangedData(const Status& status) {
  const std::string message = Message(status);
  return status.code() == StatusCode::kDataLoss &&
         (message.starts_with("data: ") || message.starts_with("evaluation.data: "));
}

}  // namespace

// On a host that the check has not seen: what another host has, but for the time.
v1::DataFiles View::DataOn(const std::string& host) const {
  if (const auto found = story_.record().data().find(host); found != story_.record().data().end()) {
    return found->second;
  }
  if (story_.record().data().empty()) return {};
  v1::DataFiles data = story_.record().data().begin()->second;
  for (v1::DataFile& file : *data.mutable_training()) file.clear_mtime_ns();
  for (v1::DataFile& file : *data.mutable_evaluation()) file.clear_mtime_ns();
  return data;
}

bool View::IsPausing(const TaskId& worker) const {
  return lasting_.fitness.IsPausing(worker, world_.scheduler.Now());
}

// Asks the worker for one, in place of whatever it was asked before.
void View::StartExecutor(const Member& member) {
  Executor& executor = executors_[member.task];
  executor.session = member.session;
  executor.ready = false;
  executor.trained = false;
  executor.buffers = 0;
  v1::Command command;
  v1::StartExecutor& start = *command.mutable_start_executor();
  *start.mutable_plan() = story_.plan();
  *start.mutable_spec() = story_.spec();
  if (WorkerLocal() && buffers_.tensors_size() > 0) *start.mutable_buffers() = buffers_;
  *start.mutable_data() = DataOn(member.info.hostname());
  FillStart(member.task, start);
  world_.commands.Send(member, command, world_.options.command_limit,
                       Guard([this, task = member.task, session = member.session](auto result) {
                         OnExecutorAnswer(task, session, result);
                       }));
}

void View::StopExecutor(World& world, const Story& story, const Member& member) {
  v1::Command command;
  v1::StopExecutor& stop = *command.mutable_stop_executor();
  stop.set_job_id(story.id());
  stop.set_epoch(world.epoch.value());
  stop.set_view(story.plan().view());
  world.commands.Send(member, command, kStopLimit, [](auto) {});
}

std::uint32_t View::ExecutorPid(const TaskId& worker) const {
  const auto found = executors_.find(worker);
  return found == executors_.end() ? 0 : found->second.pid;
}

// It is ready; or the worker could not start it: for a peer's sake (it tries again soon), by the
// user's mistake or by its own host's (others go on without it).
void View::OnExecutorAnswer(const TaskId& task, SessionId session,
                            const Result<v1::CommandResult>& result) {
  const auto found = executors_.find(task);
  if (found == executors_.end() || found->second.session != session) return;
  if (result.ok()) {
    // One that goes on has made steps.
    found->second.trained = found->second.trained || result->has_adopted();
    return OnExecutorReady(task);
  }
  const Status& status = result.status();
  OnStartEnded(task);
  if (IsChangedData(status)) return job_.Refuse(Annotate(status, "executor on " + task.ToString()));
  if (RefusesCheckpoint(status)) return;
  if (IsTransient(status.code())) {
    RestartExecutorLater(task, ++found->second.crashes);
    if (const int refusals = lasting_.fitness.NoteRefusal(task, status); refusals > 0) {
      story_.Tell("WORKER_UNFIT", RefusalText(task, status, refusals), &task,
                  {{"code", std::string(CodeName(status.code()))}});
    }
    return RefreshReason();
  }
  LeaveOut(task, status);
}

// Each time for longer. With all workers left out for the user's error the job has failed.
void View::LeaveOut(const TaskId& task, const Status& why) {
  executors_.erase(task);
  OnStartEnded(task);
  const auto [pause, told] = lasting_.fitness.LeaveOut(task, why, world_.scheduler.Now());
  if (!told) {
    story_.Tell("WORKER_UNFIT", LeftOutText(task, why, pause), &task,
                {{"code", std::string(CodeName(why.code()))}});
  }
  if (lasting_.fitness.AllRefuse(world_.members.Up("worker"))) {
    const Status status = Annotate(why, "executor on " + task.ToString());
    return why.code() == StatusCode::kInternal ? job_.Fail(status) : job_.Refuse(status);
  }
  if (OnLeftOut(task, why)) return;
  (void)world_.scheduler.RunAfter(pause, Guard([this] { StartExecutors(); }));
  StartExecutors();
}

void View::OnExecutorReady(const TaskId& task) {
  const auto found = executors_.find(task);
  if (found == executors_.end() || found->second.ready) return;
  found->second.ready = true;
  lasting_.fitness.Forget(task);
  dispatcher_->AddWorker(task);
  OnReady(task);
  if (phase_ == Phase::kStarting) Open();
  RefreshReason();
  Pump();
}

void View::OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event) {
  if (!running() || event.view() != story_.plan().view()) return;
  const auto found = executors_.find(member.task);
  if (found == executors_.end() || found->second.session != member.session) return;
  if (OnOtherProcess(member.task, event)) return;
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

// What it had runs again, and it is started again; one whose executors never get ready is left out.
void View::OnExecutorGone(const Member& member, const v1::ExecutorEvent& event) {
  const TaskId task = member.task;
  Executor& executor = executors_[task];
  const bool was_ready = executor.ready;
  executor.pid = 0;
  OnStartEnded(task);
  std::vector<std::string> lines(event.last_lines().begin(), event.last_lines().end());
  if (lines.empty()) lines = world_.logs.Last(story_.id(), task.ToString());
  const auto cause = event.from_outside() ? Dispatcher::Cause::kOutside
                     : event.stuck()      ? Dispatcher::Cause::kEndless
                                          : Dispatcher::Cause::kItself;
  const Dispatcher::Crash crash = dispatcher_->CrashWorker(task, event.how(), cause);
  const std::string reason = event.stuck() ? "EXECUTOR_STUCK" : "EXECUTOR_LOST";
  const std::string what =
      fmt::format("the executor of {} (process {}) {} by {}", task.ToString(), event.pid(),
                  event.stuck() ? "was killed" : "ended", event.how());
  story_.Tell(reason, what + "; " + Consequence(crash.requeued), &task,
              {{"pid", std::to_string(event.pid())},
               {"how", event.how()},
               {"closures", Ids(crash.requeued)}},
              lines);
  if (OnExecutorEnd(task, {reason, what, was_ready, crash.requeued, cause})) return;
  Requeued(task, crash.requeued);
  if (crash.poison) return GiveUp(*crash.poison, task, lines);
  if (!was_ready) {
    const Fitness::Limits limits{.own = world_.options.executor_limit,
                                 .kills = world_.options.kill_limit};
    if (const Status why = lasting_.fitness.EndsTooEarly(task, cause == Dispatcher::Cause::kOutside,
                                                         event.how(), limits);
        !why.ok()) {
      return LeaveOut(task, why);
    }
  }
  RestartExecutorLater(task, ++executor.crashes);
  RefreshReason();
  Pump();
}

void View::RestartExecutorLater(const TaskId& task, int crashes) {
  Executor& executor = executors_[task];
  executor.ready = false;
  // Its end is told by an event and by the answer to the command.
  if (std::exchange(executor.restart_planned, true)) return;
  const SessionId session = executor.session;
  (void)world_.scheduler.RunAfter(
      RestartDelay(crashes), Guard([this, task, session] {
        const auto found = executors_.find(task);
        if (found == executors_.end() || found->second.session != session) return;
        found->second.restart_planned = false;
        const Member* member = world_.members.Find(task);
        if (found->second.ready || member == nullptr || member->session != session ||
            member->state != Member::State::kUp) {
          return;
        }
        if (MustWait(task)) {
          executors_.erase(found);
          return;
        }
        StartExecutor(*member);
      }));
}

// Fails the job with the closure, the records that it has and how it ended its executors. One
// worker is asked for the records first.
void View::GiveUp(const Dispatcher::Verdict& verdict, const TaskId& task,
                  const std::vector<std::string>& lines) {
  if (std::exchange(judging_, true)) return;
  const auto end = [this, verdict, task, lines](const std::string& records) {
    const Status poison = Internal(
        "{}: it would do so for ever. {}. The executor's last lines are in the job's events",
        verdict.why, records);
    story_.Tell("POISON_CLOSURE", Message(poison), task.type.empty() ? nullptr : &task,
                {{"closure", std::to_string(verdict.closure.id)}, {"records", records}}, lines);
    job_.Fail(poison);
  };
  const std::vector<const Member*> workers = world_.members.Up("worker");
  if (workers.empty() || verdict.closure.kind == v1::CLOSURE_KIND_UNSPECIFIED) {
    return end("Which records it has is not known");
  }
  story_.SetState(story_.record().job().state(), "POISON_CLOSURE",
                  verdict.why + "; looks up its records");
  v1::Command command;
  v1::ProbeData& probe = *command.mutable_probe_data();
  *probe.mutable_spec() = story_.spec();
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
