// The executors of a job: started on each worker, watched, started again; workers that cannot.
#include <algorithm>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "coordinator/allocation.h"
#include "coordinator/driver_messages.h"
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

bool View::HasItNow(const Member& worker) const {
  const auto found = executors_.find(worker.task);
  return found != executors_.end() && found->second.session == worker.session;
}

// Those that have one keep it.
void View::StartExecutorsOn(std::size_t most) {
  auto have = static_cast<std::size_t>(std::ranges::count_if(
      world_.members.Up("worker"), [this](const Member* worker) { return HasItNow(*worker); }));
  std::vector<const Member*> free = FreeWorkers(world_, lasting_.fitness);
  std::ranges::stable_partition(free,
                                [this](const Member* worker) { return ComesFirst(worker->task); });
  for (const Member* worker : free) {
    if (most > 0 && have >= most) return;
    if (HasItNow(*worker) || MustWait(worker->task)) continue;
    StartExecutor(*worker);
    ++have;
  }
}

// Asks the worker for one, in place of whatever it was asked before.
void View::StartExecutor(const Member& member) {
  Incarnation& number = numbers_[member.task];
  if (number == Incarnation()) {
    number = NextIncarnation(world_.epoch, lasting_.executors_started);
  }
  lasting_.executors[number] = member.task;
  Executor& executor = executors_[member.task];
  executor.session = member.session;
  executor.number = number;
  executor.ready = false;
  executor.trained = false;
  executor.buffers = 0;
  v1::Command command;
  v1::StartExecutor& start = *command.mutable_start_executor();
  start.mutable_program()->set_job_id(story_.id());
  start.mutable_program()->set_job_name(story_.record().job().name());
  start.mutable_program()->set_incarnation(number.value());
  *start.mutable_plan() = story_.plan();
  *start.mutable_spec() = story_.spec();
  if (WorkerLocal() && buffers_.tensors_size() > 0) *start.mutable_buffers() = buffers_;
  *start.mutable_data() = story_.DataOn(member.info.hostname());
  FillStart(member.task, start);
  // It answers when it has read all of a checkpoint.
  const Millis limit =
      start.restore_from().empty() ? world_.options.command_limit : world_.options.restore_limit;
  world_.commands.Send(member, command, limit,
                       Guard([this, task = member.task, number](auto result) {
                         OnExecutorAnswer(task, number, result);
                       }));
}

// One that goes on keeps its number, which it says where it serves with, and has made steps.
void View::TakeExecutor(const TaskId& worker, const v1::AdoptReport& report) {
  Executor& executor = executors_.at(worker);
  executor.number = numbers_[worker] = Incarnation(report.executor());
  executor.trained = true;
  lasting_.executors[executor.number] = worker;
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

// That it is ready its event has said already. The worker could not start it: for a peer's sake (it
// tries again soon), by the user's mistake or by its own host's (others go on without it).
void View::OnExecutorAnswer(const TaskId& task, Incarnation number,
                            const Result<v1::CommandResult>& result) {
  const auto found = executors_.find(task);
  if (found == executors_.end() || found->second.number != number) return;
  if (result.ok() && result->has_adopted()) return TakeExecutor(task, result->adopted());
  const Status& status = result.status();
  if (status.ok() || found->second.ready) return;
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
  numbers_.erase(task);
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

void View::OnExecutorReady(const TaskId& task, const v1::ExecutorEvent& event) {
  Executor& executor = executors_.at(task);
  executor.pid = event.pid();
  executor.endpoint = event.endpoint();
  executor.group_address = event.group_address();
  if (executor.ready) return;
  executor.ready = true;
  lasting_.fitness.Forget(task);
  if (WorkerLocal() && buffers_version_ > 0) GiveBuffers(task);
  TellMembers();
  OnReady(task);
  if (phase_ == Phase::kStarting) Open();
  RefreshReason();
}

void View::OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event) {
  if (!running() || event.view() != story_.plan().view()) return;
  const auto found = executors_.find(member.task);
  if (found == executors_.end() || found->second.session != member.session ||
      found->second.number != Incarnation(event.incarnation())) {
    return;
  }
  if (OnOtherProcess(member.task, event)) return;
  switch (event.kind()) {
    case v1::ExecutorEvent::KIND_STARTED:
      found->second.pid = event.pid();
      world_.logs.NoteStart(story_.id(), member.task.ToString());
      break;
    case v1::ExecutorEvent::KIND_READY:
      OnExecutorReady(member.task, event);
      break;
    case v1::ExecutorEvent::KIND_EXITED:
      OnExecutorGone(member.task, event);
      break;
    default:
      break;
  }
}

// What it had runs again, which the driver knows; then it is started again.
void View::OnExecutorGone(const TaskId& task, const v1::ExecutorEvent& event) {
  Executor& executor = executors_.at(task);
  const bool was_ready = std::exchange(executor.ready, false);
  executor.pid = 0;
  numbers_.erase(task);
  OnStartEnded(task);
  // Its own: the log's newest lines may be those of the executor before it.
  const std::vector<std::string> lines(event.last_lines().begin(), event.last_lines().end());
  if (!was_ready) return OnExecutorEnded(task, event, was_ready, lines, {});
  AskWhatItHad({task, executor.number, CauseOf(event), event.how(), lines},
               [this, task, event, was_ready, lines](const Had& had) {
                 OnExecutorEnded(task, event, was_ready, lines, had);
               });
}

// One whose executors never get ready is left out.
void View::OnExecutorEnded(const TaskId& task, const v1::ExecutorEvent& event, bool was_ready,
                           const std::vector<std::string>& lines, const Had& had) {
  const Cause cause = CauseOf(event);
  const std::string reason = event.stuck() ? "EXECUTOR_STUCK" : "EXECUTOR_LOST";
  const std::string what =
      fmt::format("the executor of {} (process {}) {} by {}", task.ToString(), event.pid(),
                  event.stuck() ? "was killed" : "ended", event.how());
  story_.Tell(
      reason, what + "; " + Consequence(had.closures), &task,
      {{"pid", std::to_string(event.pid())}, {"how", event.how()}, {"closures", Ids(had.closures)}},
      lines);
  if (OnExecutorEnd(task, {reason, what, was_ready, had.closures, cause})) return;
  if (had.given_up) return GiveUp(*had.given_up, task, lines);
  if (!was_ready) {
    const Fitness::Limits limits{.own = world_.options.executor_limit,
                                 .kills = world_.options.kill_limit};
    if (const Status why = lasting_.fitness.EndsTooEarly(
            task, cause == v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE, event.how(), limits);
        !why.ok()) {
      return LeaveOut(task, why);
    }
  }
  // Its worker may have been lost meanwhile.
  const auto executor = executors_.find(task);
  if (executor != executors_.end()) RestartExecutorLater(task, ++executor->second.crashes);
  RefreshReason();
}

void View::RestartExecutorLater(const TaskId& task, int crashes) {
  Executor& executor = executors_[task];
  executor.ready = false;
  numbers_.erase(task);
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
void View::GiveUp(const Verdict& verdict, const TaskId& task,
                  const std::vector<std::string>& lines) {
  if (std::exchange(judging_, true) || job_.ended()) return;
  SetPace();
  const auto end = [this, verdict, task, lines](const std::string& records) {
    const Status poison = Internal(
        "{}: it would do so for ever. {}. The executor's last lines are in the job's events",
        verdict.why, records);
    story_.Tell("POISON_CLOSURE", Message(poison), task.type.empty() ? nullptr : &task,
                {{"closure", std::to_string(verdict.closure.id)}, {"records", records}}, lines);
    job_.Fail(poison);
  };
  const std::vector<const Member*> workers = world_.members.Up("worker");
  // A view that has ended with this executor hears no answer of a worker.
  if (phase_ == Phase::kGone || workers.empty() ||
      verdict.closure.kind == v1::CLOSURE_KIND_UNSPECIFIED) {
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
