// A launched job from its beginning to its end.
#include "coordinator/launch_job.h"

#include <algorithm>

#include "common/base/words.h"
#include "coordinator/launch_commands.h"
#include "coordinator/restarts.h"

namespace muster::coordinator {
std::uint32_t LaunchJob::PerWorker() const {
  return std::max<std::uint32_t>(1, launch().processes_per_worker());
}

std::vector<std::string> LaunchJob::Missing() const {
  const std::size_t wanted = story_.spec().strategy().workers();
  const std::size_t there = world_.members.Up("worker").size();
  if (there == 0 || there >= wanted || stage_ == Stage::kAdopting) return {};
  return {fmt::format("{} ({} of {} {} there)", Counted(wanted - there, "more worker"), there,
                      wanted, Agreeing(there, "is", "are"))};
}

// Chooses workers, and writes the launch's number before any of them hears of it.
void LaunchJob::Begin() {
  if (world_.draining) {
    return RetryAfter(Millis(1'000), "CLUSTER_DRAINING", "it begins when the coordinator is back");
  }
  const std::vector<const Member*> workers = Choose();
  if (workers.empty()) {
    return RetryAfter(Millis(1'000), "NO_FIT_WORKER",
                      "too few workers can run it; they are asked again: " +
                          fitness_.Reasons(world_.members.Up("worker")));
  }
  v1::JobPlan& plan = *story_.record().mutable_plan();
  plan.set_job_id(id());
  plan.set_job_number(record().number());
  plan.set_epoch(world_.epoch.value());
  plan.set_view(plan.view() + 1);
  story_.record().set_begin_anew(false);
  number_ = world_.epoch.value() << 32 | ++launches_started_;
  ranks_.clear();
  for (const Member* worker : workers) {
    for (std::uint32_t i = 0; i < PerWorker(); ++i) {
      ranks_.push_back({.worker = worker->task,
                        .session = worker->session,
                        .hostname = worker->info.hostname(),
                        .address = {},
                        .end = {},
                        .lost = {}});
    }
  }
  stage_ = Stage::kPreparing;
  preempted_ = cluster_ended_ = false;
  Show();
  story_.SetState(record().job().restarts() > 0 ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_STARTING,
                  "STARTING_PROCESSES", "workers fetch its files and claim addresses");
  story_.Persist(Guard([this](const Status& status) {
    if (!status.ok()) return RetryAfter(Millis(1'000), "JOURNAL_UNAVAILABLE", Message(status));
    SendPrepare();
  }));
}

void LaunchJob::Leave() {
  stage_ = Stage::kIdle;
  ranks_.clear();
  master_.clear();
  waiting_ = 0;
}

// --- A restart of the coordinator.

std::string LaunchJob::AfterRestart() const {
  if (record().plan().view() == 0) return "the command has not begun yet; it waits for its workers";
  return "its processes go on; their workers tell what became of them";
}

// The processes may be there still: their workers say so when they register.
void LaunchJob::GoOnAfterRestart() {
  const v1::LaunchState& state = record().job().launch();
  number_ = state.launch();
  const bool began = record().job().state() == v1::JOB_STATE_RUNNING ||
                     record().job().state() == v1::JOB_STATE_STOPPING;
  if (record().plan().view() == 0 || !began || state.tasks().empty()) {
    return story_.SetState(v1::JOB_STATE_PENDING, "COORDINATOR_RESTARTED", "waiting for its tasks");
  }
  for (const v1::LaunchedTask& task : state.tasks()) {
    ranks_.push_back({.worker = FromProto(task.worker()),
                      .session = {},
                      .hostname = task.hostname(),
                      .address = task.address(),
                      .end = {},
                      .lost = {},
                      .pid = task.pid()});
  }
  cluster_ended_ = record().job().reason() == "CLUSTER_DRAINING";
  phase_ = Phase::kBegun;
  stage_ = Stage::kAdopting;
  story_.SetState(v1::JOB_STATE_RESTORING, "COORDINATOR_RESTARTED",
                  "waiting for the workers that run its processes");
  (void)world_.scheduler.RunAfter(kAdoptLimit, Guard([this] {
                                    if (stage_ != Stage::kAdopting) return;
                                    for (Rank& rank : ranks_) {
                                      if (rank.session == SessionId())
                                        rank.lost = "it has not come back with its processes";
                                    }
                                    OnAdopted();
                                  }));
}

std::string LaunchJob::Forget(bool anew) {
  Leave();
  fitness_.Clear();
  preempted_ = cluster_ended_ = false;
  v1::Job& job = *story_.record().mutable_job();
  job.clear_launch();
  job.set_restarts(0);
  return anew ? "submitted again with --restart: its processes begin anew"
              : "submitted again: its processes begin anew; what they go on from is their own";
}

// --- What people see.

std::string LaunchJob::NameOf(const Rank& rank) const {
  const auto number = static_cast<std::size_t>(&rank - ranks_.data());
  return fmt::format("worker:{} (rank {} of {}, on {} of {})", number, number, ranks_.size(),
                     rank.worker.ToString(), rank.hostname);
}

// "ended by signal SIGKILL", "is lost with its worker: ...".
std::string LaunchJob::EndOf(const Rank& rank) const {
  if (!rank.lost.empty()) {
    return fmt::format("is lost with {}: {}", rank.worker.ToString(), rank.lost);
  }
  return EndText(*rank.end);
}

void LaunchJob::Show() {
  v1::LaunchState& state = *story_.record().mutable_job()->mutable_launch();
  state.set_launch(number_);
  state.clear_tasks();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    v1::LaunchedTask& task = *state.add_tasks();
    *task.mutable_task() = ToProto({"worker", static_cast<int>(i)});
    *task.mutable_worker() = ToProto(rank.worker);
    task.set_hostname(rank.hostname);
    task.set_address(rank.address);
    task.set_pid(rank.pid);
    task.set_launch(number_);
    task.set_state(rank.end             ? "ended"
                   : !rank.lost.empty() ? "lost"
                   : rank.pid != 0      ? "running"
                                        : "starting");
    task.set_how(rank.end ? rank.end->how() : rank.lost);
  }
  story_.Touch();
}

void LaunchJob::DescribeWorker(const TaskId& worker, v1::TaskState& state) const {
  state.set_executor_pid(0);
  for (const Rank& rank : ranks_) {
    if (rank.worker == worker && !rank.settled()) state.set_executor_pid(rank.pid);
  }
}

bool LaunchJob::Occupies(const TaskId& worker) const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [&](const Rank& rank) { return rank.worker == worker && !rank.settled(); });
}

// --- Stop, and the end.

void LaunchJob::BeginStop(Millis grace) {
  const bool none = stage_ == Stage::kIdle || stage_ == Stage::kPreparing;
  if (none || phase_ != Phase::kBegun) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               "stopped while no process of it ran");
  }
  const Millis limit = grace.count() > 0 ? grace : world_.options.stop_grace;
  story_.SetState(v1::JOB_STATE_STOPPING, "STOP_REQUESTED", "its processes are asked to end");
  EndAfter(limit + kStopMargin,
           fmt::format("stopped: not all workers have said that its processes ended in {:.1f} s",
                       static_cast<double>((limit + kStopMargin).count()) / 1000));
  BeginEnding(limit);
}

// The processes go on without this coordinator, unless their workers end, too.
void LaunchJob::OnClusterDraining() {
  if (phase_ != Phase::kBegun || stage_ != Stage::kRunning) return;
  story_.Tell("CLUSTER_DRAINING",
              "the coordinator was asked to end: processes go on where their workers do");
  story_.SetState(v1::JOB_STATE_RUNNING, "CLUSTER_DRAINING",
                  "the coordinator was asked to end; its processes go on where their workers do");
  story_.Persist();
}

bool LaunchJob::MayLeave(const Member& member) const {
  return phase_ != Phase::kBegun || !Occupies(member.task);
}

const LaunchJob::Rank* LaunchJob::Cause() const {
  const Rank* cause = nullptr;
  const auto sooner = [](const Rank& a, const Rank& b) {
    if (a.end->asked() != b.end->asked()) return !a.end->asked();
    return a.end->ended_us() < b.end->ended_us();
  };
  for (const Rank& rank : ranks_) {
    if (!rank.failed()) continue;
    if (!rank.lost.empty()) return &rank;
    if (cause == nullptr || sooner(rank, *cause)) cause = &rank;
  }
  return cause;
}

bool LaunchJob::MayBeginAnew(const Rank& cause) const {
  const v1::RestartPolicy policy = launch().restart();
  if (policy != v1::RESTART_POLICY_ON_FAILURE && policy != v1::RESTART_POLICY_EXIT_CODE) {
    return false;
  }
  if (preempted_ || cluster_ended_) return true;
  if (policy == v1::RESTART_POLICY_EXIT_CODE && cause.end && IsOwnWord(*cause.end)) return false;
  const std::uint32_t most =
      launch().max_restarts() == 0 ? kDefaultRestarts : launch().max_restarts();
  return record().job().restarts() < most;
}

// What has become of the launch is what becomes of the job.
void LaunchJob::Conclude() {
  Show();
  if (world_.on_settled) world_.on_settled();
  if (record().stop_requested()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               "stopped as asked; its processes have ended");
  }
  if (const Rank* cause = Cause()) return ConcludeFailure(*cause);
  End(v1::JOB_STATE_SUCCEEDED, Ok(),
      fmt::format("done: {} ended with exit code 0", Counted(ranks_.size(), "process")));
}

void LaunchJob::ConcludeFailure(const Rank& cause) {
  v1::Job& job = *story_.record().mutable_job();
  const TaskId task{"worker", static_cast<int>(&cause - ranks_.data())};
  const bool asked = preempted_ || cluster_ended_;
  std::string what = NameOf(cause) + " " + EndOf(cause);
  if (asked) what += "; its cluster, or a worker of it, was asked to end";
  const bool again = MayBeginAnew(cause);
  if (again && !asked) job.set_restarts(job.restarts() + 1);
  const std::string then =
      again ? fmt::format("; all {} begin anew", Counted(ranks_.size(), "process"))
            : "; they are not started again";
  const std::vector<std::string> lines =
      cause.end
          ? std::vector<std::string>(cause.end->last_lines().begin(), cause.end->last_lines().end())
          : world_.logs.Last(id(), task.ToString());
  story_.Tell("PROGRAM_ENDED", what + then, &task,
              {{"pid", std::to_string(cause.pid)},
               {"how", cause.end ? cause.end->how() : cause.lost},
               {"worker", cause.worker.ToString()},
               {"hostname", cause.hostname},
               {"restarts", std::to_string(job.restarts())}},
              lines);
  if (again) {
    story_.SetState(v1::JOB_STATE_RESTORING, "PROGRAM_ENDED", "its processes begin anew soon");
    story_.Persist();  // the number of restarts outlives this coordinator
    return RetryAfter(RestartPause(job.restarts()), "PROGRAM_ENDED",
                      "its processes begin anew soon");
  }
  if (cluster_ended_ || (preempted_ && world_.draining)) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("the cluster was asked to end"), what);
  }
  if (!cause.lost.empty() || preempted_) return Fail(Unavailable("{}", what));
  Fail(Internal("{}; `muster logs {} {}` shows what it wrote", what, id(), task.ToString()));
}

// Whatever of it is left anywhere, and its working folders.
void LaunchJob::LetGo() {
  if (record().plan().view() == 0) return;
  std::vector<const Member*> workers = world_.members.Up("worker");
  for (const Member* leaving : world_.members.Draining()) workers.push_back(leaving);
  for (const Member* worker : workers) {
    if (worker->task.type == "worker") SendStop(*worker, Millis(0), true);
  }
}

}  // namespace muster::coordinator
