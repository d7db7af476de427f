// Which workers a program has, and the executors on them.
#include <algorithm>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "coordinator/allocation.h"
#include "coordinator/driver_messages.h"
#include "coordinator/program_job.h"

namespace muster::coordinator {
namespace {

// An executor that has served for so long did not end for what ended the one before it.
constexpr Millis kSound{60'000};

}  // namespace

// --- Allocation.

void ProgramJob::Allocate() {
  if (phase_ != Phase::kBegun || !open_) return;
  const std::size_t most = MostWorkers(story_.spec().strategy());
  auto working = static_cast<std::size_t>(std::ranges::count_if(
      world_.members.Up("worker"),
      [this](const Member* worker) { return executors_.contains(worker->task); }));
  for (const Member* worker : FreeWorkers(world_, fitness_)) {
    if (executors_.contains(worker->task)) continue;
    if (most > 0 && working++ >= most) break;
    StartExecutor(*worker);
  }
  RefreshReason();
}

void ProgramJob::OnArrival(const Member& member, const Arrival& arrival) {
  if (!arrival.same_process) fitness_.Forget(member.task);
  if (phase_ != Phase::kBegun) return;
  if (member.task.type == "ps") {
    driver_.away.erase(member.task);
    TellMembers();
    StartDriver();
    return RefreshReason();
  }
  // What was on its way between it and us may have been lost with the old stream.
  if (const auto found = executors_.find(member.task); found != executors_.end()) {
    TellVerdict(found->first, found->second, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE,
                member.task.ToString() + " has registered again", {});
    executors_.erase(found);
    TellMembers();
  }
  StartDriver();
  Allocate();
}

// It goes on until it ends; another may take its place already.
void ProgramJob::OnTaskDraining(const TaskId& task) {
  if (task.type == "worker") Allocate();
}

void ProgramJob::OnLost(const Member& member) {
  if (phase_ != Phase::kBegun) return;
  if (member.task.type == "ps") return OnServerLost(member);
  const auto found = executors_.find(member.task);
  if (found == executors_.end()) return;
  const std::vector<std::string> lines = world_.logs.Last(id(), member.task.ToString());
  story_.Tell("WORKER_LOST",
              fmt::format("{} (process {}) was lost: {}; its closures go to others",
                          member.task.ToString(), member.info.pid(), member.how),
              &member.task,
              {{"pid", std::to_string(member.info.pid())},
               {"session", std::to_string(member.session.value())},
               {"how", member.how}},
              lines);
  TellVerdict(found->first, found->second, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE,
              fmt::format("{} is lost: {}", member.task.ToString(), member.how), lines);
  executors_.erase(found);
  TellMembers();
  Allocate();
}

// --- Executors.

bool ProgramJob::AnyReady() const {
  return std::any_of(executors_.begin(), executors_.end(),
                     [](const auto& one) { return one.second.ready; });
}

std::string ProgramJob::ReadyNames() const {
  std::vector<std::string> names;
  for (const auto& [task, executor] : executors_) {
    if (executor.ready) names.push_back(task.ToString());
  }
  return Joined(names, kMostNamed);
}

// Asks the worker for one, under a number of its own, in place of any that it may have.
void ProgramJob::StartExecutor(const Member& worker) {
  Executor& executor = executors_[worker.task];
  executor.session = worker.session;
  executor.incarnation = NextIncarnation(world_.epoch, executors_started_);
  executor.ready = false;
  executor.pid = 0;
  v1::Command command;
  v1::StartExecutor& start = *command.mutable_start_executor();
  *start.mutable_plan() = story_.plan();
  *start.mutable_spec() = story_.spec();
  v1::ProgramStart& program = *start.mutable_program();
  program.set_job_id(id());
  program.set_job_name(record().job().name());
  program.set_epoch(world_.epoch.value());
  program.set_incarnation(executor.incarnation.value());
  *program.mutable_strategy() = story_.spec().strategy();
  program.set_closures_at_a_time(
      std::max<std::uint32_t>(1, story_.spec().program().closures_per_worker()));
  program.set_memory_bytes(story_.spec().program().memory_bytes());
  world_.commands.Send(
      worker, command, world_.options.command_limit,
      Guard([this, task = worker.task, incarnation = executor.incarnation](auto result) {
        OnExecutorAnswer(task, incarnation, result.status());
      }));
}

// For one that is ready the answer says nothing new: its event has come before it. Else the worker
// could not start it, for a peer's sake (it tries again soon), by the user's mistake or by its own
// host's (others go on without it).
void ProgramJob::OnExecutorAnswer(const TaskId& task, Incarnation incarnation,
                                  const Status& status) {
  const auto found = executors_.find(task);
  if (status.ok() || found == executors_.end() || found->second.incarnation != incarnation ||
      found->second.ready) {
    return;
  }
  if (!IsTransient(status.code())) return LeaveOut(task, status);
  // Its end has been told already, by its event.
  if (!found->second.restart_planned) {
    ++found->second.crashes;
    RestartExecutorLater(task, found->second);
  }
  if (const int refusals = fitness_.NoteRefusal(task, status); refusals > 0) {
    story_.Tell("WORKER_UNFIT", RefusalText(task, status, refusals), &task,
                {{"code", std::string(CodeName(status.code()))}});
  }
  RefreshReason();
}

void ProgramJob::LeaveOut(const TaskId& task, const Status& why) {
  executors_.erase(task);
  const auto [pause, told] = fitness_.LeaveOut(task, why, world_.scheduler.Now());
  if (!told) {
    story_.Tell("WORKER_UNFIT", LeftOutText(task, why, pause), &task,
                {{"code", std::string(CodeName(why.code()))}});
  }
  if (fitness_.AllRefuse(world_.members.Up("worker")) && !AnyReady()) {
    const Status status = Annotate(why, "executor on " + task.ToString());
    return why.code() == StatusCode::kInternal ? Fail(status) : Refuse(status);
  }
  (void)world_.scheduler.RunAfter(pause, Guard([this] { Allocate(); }));
  Allocate();
}

void ProgramJob::OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event) {
  if (phase_ != Phase::kBegun) return;
  const auto found = executors_.find(member.task);
  if (found == executors_.end() || found->second.session != member.session ||
      found->second.incarnation != Incarnation(event.incarnation())) {
    return;
  }
  switch (event.kind()) {
    case v1::ExecutorEvent::KIND_STARTED:
      found->second.pid = event.pid();
      world_.logs.NoteStart(id(), member.task.ToString());
      break;
    case v1::ExecutorEvent::KIND_READY:
      OnExecutorReady(found->first, found->second, event);
      break;
    case v1::ExecutorEvent::KIND_EXITED:
      OnExecutorGone(member, found->second, event);
      break;
    default:
      break;
  }
}

void ProgramJob::OnExecutorReady(const TaskId& task, Executor& executor,
                                 const v1::ExecutorEvent& event) {
  // One whose end is known does not come back.
  if (executor.ready || executor.restart_planned) return;
  executor.ready = true;
  executor.ready_at = world_.scheduler.Now();
  executor.pid = event.pid();
  executor.endpoint = event.endpoint();
  fitness_.Forget(task);
  TellMembers();
  StartDriver();
  RefreshReason();
  // Another one may have waited for this before it leaves.
  if (world_.on_settled) world_.on_settled();
}

// The driver is told how it ended, and it is started again; one whose executors never get ready is
// left out.
void ProgramJob::OnExecutorGone(const Member& member, Executor& executor,
                                const v1::ExecutorEvent& event) {
  const TaskId task = member.task;
  const bool was_ready = std::exchange(executor.ready, false);
  const auto pid = std::exchange(executor.pid, 0);
  if (was_ready && world_.scheduler.Now() - executor.ready_at >= kSound) executor.crashes = 0;
  // Its own: the log's newest lines may be those of the executor before it.
  const std::vector<std::string> lines(event.last_lines().begin(), event.last_lines().end());
  story_.Tell(event.stuck() ? "EXECUTOR_STUCK" : "EXECUTOR_LOST",
              fmt::format("the executor of {} (process {}) {} by {}{}", task.ToString(), pid,
                          event.stuck() ? "was killed" : "ended", event.how(),
                          was_ready ? "; its closures go to others" : " before it was ready"),
              &task, {{"pid", std::to_string(pid)}, {"how", event.how()}}, lines);
  if (was_ready) {
    TellVerdict(task, executor, CauseOf(event), event.how(), lines, &event);
    TellMembers();
  } else if (const Status why = fitness_.EndsTooEarly(
                 task, event.from_outside(), event.how(),
                 {.own = world_.options.executor_limit, .kills = world_.options.kill_limit});
             !why.ok()) {
    return LeaveOut(task, why);
  }
  ++executor.crashes;
  RestartExecutorLater(task, executor);
  RefreshReason();
}

void ProgramJob::RestartExecutorLater(const TaskId& task, Executor& executor) {
  // Its end is told by an event and by the answer to the command.
  if (std::exchange(executor.restart_planned, true)) return;
  (void)world_.scheduler.RunAfter(
      RestartDelay(executor.crashes), Guard([this, task, incarnation = executor.incarnation] {
        const auto found = executors_.find(task);
        if (found == executors_.end() || found->second.incarnation != incarnation) return;
        found->second.restart_planned = false;
        const Member* member = world_.members.Find(task);
        const bool there = member != nullptr && member->state == Member::State::kUp &&
                           member->session == found->second.session;
        if (there) {
          StartExecutor(*member);
        } else {
          executors_.erase(found);
          Allocate();
        }
      }));
}

}  // namespace muster::coordinator
