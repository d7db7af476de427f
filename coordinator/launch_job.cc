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
  if (stage_ == Stage::kAdopting) return {};
  return world_.members.MissingWorkers(story_.spec().strategy().workers());
}

// Chooses workers, and writes the launch's number before any of them hears of it.
void LaunchJob::Begin() {
  const std::vector<const Member*> workers = Choose();
  if (!BeginsOn(!workers.empty())) return;
  (void)NextNumber();
  ranks_.clear();
  for (const Member* worker : workers) {
    for (std::uint32_t i = 0; i < PerWorker(); ++i) {
      ranks_.push_back({.worker = worker->task,
                        .session = worker->session,
                        .hostname = worker->info.hostname(),
                        .address = {},
                        .end = {},
                        .lost = {}});
      world_.logs.NoteStart(id(), fmt::format("worker:{}", ranks_.size() - 1));
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

// The processes may be there still: their workers say so when they register.
void LaunchJob::GoOnAfterRestart() {
  if (!HasBegunBefore()) return;
  for (const v1::LaunchedTask& task : record().job().launch().tasks()) {
    ranks_.push_back({.worker = FromProto(task.worker()),
                      .session = {},
                      .hostname = task.hostname(),
                      .address = task.address(),
                      .end = {},
                      .lost = {},
                      .pid = task.pid()});
    // Its worker may be another process since, which has nothing to tell of it.
    if (task.state() != "ended" || task.how() != kEndedWell) continue;
    ranks_.back().end.emplace();
    ranks_.back().end->set_how(task.how());
  }
  cluster_ended_ = record().job().reason() == "CLUSTER_DRAINING";
  phase_ = Phase::kBegun;
  (void)world_.scheduler.RunAfter(kAdoptLimit, Guard([this] { OnAdoptLimit(); }));
  if (record().stop_requested()) return GoOnStopping();
  stage_ = Stage::kAdopting;
  story_.SetState(v1::JOB_STATE_RESTORING, "COORDINATOR_RESTARTED",
                  "waiting for the workers that run its processes");
}

std::string LaunchJob::Forget(bool anew) {
  preempted_ = cluster_ended_ = false;
  return LaunchedJob::Forget(anew);
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
  if (rank.awaited) {
    return fmt::format("ended with {} while the others wait for it to join their group",
                       rank.end->how());
  }
  return EndText(*rank.end);
}

void LaunchJob::Show() {
  v1::LaunchState& state = *story_.record().mutable_job()->mutable_launch();
  state.set_launch(number_.value());
  state.clear_tasks();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    v1::LaunchedTask& task = *state.add_tasks();
    *task.mutable_task() = ToProto({"worker", static_cast<int>(i)});
    *task.mutable_worker() = ToProto(rank.worker);
    task.set_hostname(rank.hostname);
    task.set_address(rank.address);
    task.set_pid(rank.pid);
    task.set_launch(number_.value());
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

// The processes go on without this coordinator, unless their workers end, too.
void LaunchJob::OnClusterDraining() {
  if (phase_ != Phase::kBegun || stage_ != Stage::kRunning) return;
  story_.Tell("CLUSTER_DRAINING",
              "the coordinator was asked to end: processes go on where their workers do");
  story_.SetState(v1::JOB_STATE_RUNNING, "CLUSTER_DRAINING",
                  "the coordinator was asked to end; its processes go on where their workers do");
  story_.Persist();
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
  const bool own_word = cause.awaited || (cause.end && IsOwnWord(*cause.end));
  if (policy == v1::RESTART_POLICY_EXIT_CODE && own_word) return false;
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

// All processes have ended, `cause` first: they begin anew together, as far as the restart policy
// and their count allow, or the job ends with what it says of the first.
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

}  // namespace muster::coordinator
