// A program's job from its beginning to its end.
#include "coordinator/program_job.h"

#include <algorithm>

#include "common/base/words.h"
#include "coordinator/restarts.h"

namespace muster::coordinator {
namespace {

constexpr Millis kLetGoLimit{30'000};
// For main() to end by SIGTERM when the job has ended.
constexpr Millis kDriverGrace{1'000};

}  // namespace

std::uint32_t ProgramJob::MostRestarts() const {
  const v1::ProgramSpec& program = story_.spec().program();
  if (program.restart() != v1::RESTART_POLICY_ON_FAILURE) return 0;
  return program.max_restarts() == 0 ? kDefaultRestarts : program.max_restarts();
}

bool ProgramJob::MayBeginAnew() const { return record().job().restarts() < MostRestarts(); }

std::vector<std::string> ProgramJob::Missing() const {
  std::vector<std::string> missing;
  const auto want = [&](std::size_t wanted, std::size_t there, const std::string& what) {
    if (there >= wanted) return;
    missing.push_back(fmt::format("{} ({} of {} {} there)", Counted(wanted - there, "more " + what),
                                  there, wanted, Agreeing(there, "is", "are")));
  };
  if (const std::size_t there = world_.members.Up("worker").size(); there > 0) {
    want(story_.spec().strategy().workers(), there, "worker");
  }
  const std::size_t servers =
      std::max<std::size_t>(story_.spec().program().parameter_servers(), servers_had_);
  want(servers, world_.members.Up("ps").size(), "parameter server");
  return missing;
}

// The number of the beginning goes to the disk first: executors of before it are refused.
void ProgramJob::Begin() {
  story_.BeginNext();
  story_.SetState(record().job().restarts() > 0 ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_STARTING,
                  "STARTING_EXECUTORS",
                  "the coordinator writes the job's beginning to its database");
  story_.Persist(Guard([this](const Status& status) {
    if (!status.ok()) return RetryAfter(Millis(1'000), "JOURNAL_UNAVAILABLE", Message(status));
    open_ = true;
    Allocate();
  }));
}

// --- A restart of the coordinator.

// A row of an earlier version does not say that a driver was started, but that main() ran.
bool ProgramJob::MayHaveRun() const {
  return record().driver_begun() || record().job().state() == v1::JOB_STATE_RUNNING;
}

std::string ProgramJob::AfterRestart() const {
  if (!record().trained().empty()) return "main() has ended well; what is left is evaluated";
  if (!MayHaveRun()) {
    return record().job().started_ms() > 0
               ? "main() did not run; it begins anew when workers are there"
               : "the program has not begun yet; it waits for its workers";
  }
  const std::string died = "the program's main() was its child and ended with it; ";
  if (MayBeginAnew()) return died + "it begins anew when workers are there";
  return died + (MostRestarts() == 0 ? "its restart policy is never"
                                     : fmt::format("it has begun anew {} already",
                                                   Counted(record().job().restarts(), "time")));
}

void ProgramJob::GoOnAfterRestart() {
  if (!record().trained().empty()) {
    AwaitEvaluator();
    return StartEvaluatorLater();
  }
  // Nothing of the program has failed, so that its policy is not asked.
  if (!MayHaveRun()) {
    return story_.SetState(HasBegun() ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_PENDING,
                           "COORDINATOR_RESTARTED", "waiting for its tasks");
  }
  if (!MayBeginAnew()) {
    const std::string what =
        MostRestarts() == 0
            ? "the coordinator was restarted, and the program's main() ended with it. Submit it "
              "again; with --restart-policy on-failure main() begins anew by itself"
            : fmt::format(
                  "the coordinator was restarted, and the program's main() ended with it. It has "
                  "begun anew {} already; --max-restarts {} allows no more. Submit it again",
                  Counted(record().job().restarts(), "time"), MostRestarts());
    return End(v1::JOB_STATE_FAILED, Aborted("{}", what), what, "COORDINATOR_RESTARTED");
  }
  v1::Job& job = *story_.record().mutable_job();
  job.set_restarts(job.restarts() + 1);
  story_.record().set_driver_begun(false);
  ForgetMoment();
  story_.SetState(v1::JOB_STATE_RESTORING, "COORDINATOR_RESTARTED", "waiting for its tasks");
  story_.Persist();
}

std::string ProgramJob::Forget(bool anew) {
  // The old processes are on their way out, and their ends nobody's concern.
  driver_ = Driver();
  executors_.clear();
  fitness_.Clear();
  evaluator_ = Evaluator();
  succeeds_.reset();
  story_.record().clear_trained();
  story_.record().set_driver_begun(false);
  pausing_ = given_up_ = false;
  servers_had_ = 0;
  v1::Job& job = *story_.record().mutable_job();
  job.clear_program();
  job.set_restarts(0);
  return anew ? "submitted again with --restart: main() begins anew"
              : "submitted again: main() begins anew; what it goes on from is its own";
}

// --- What people see.

void ProgramJob::DescribeWorker(const TaskId& worker, v1::TaskState& state) const {
  const auto found = executors_.find(worker);
  state.set_executor_pid(found == executors_.end() ? 0 : found->second.pid);
}

// What it is doing, or waits for.
void ProgramJob::RefreshReason() {
  if (phase_ != Phase::kBegun || !open_ || succeeds_) return;
  const bool stopping = record().stop_requested();
  const v1::JobState state = stopping                        ? v1::JOB_STATE_STOPPING
                             : driver_.ready                 ? v1::JOB_STATE_RUNNING
                             : record().job().restarts() > 0 ? v1::JOB_STATE_RESTORING
                                                             : v1::JOB_STATE_STARTING;
  if (stopping) return story_.SetState(state, "STOP_REQUESTED", "main() is asked to end");
  if (pausing_) return story_.SetState(state, "PROGRAM_ENDED", "main() begins anew soon");
  const std::vector<const Member*> workers = world_.members.Up("worker");
  if (AnyReady()) {
    if (driver_.ready && !driver_.away.empty()) {
      const auto text = [](const auto& one) {
        return fmt::format("{} ({})", one.first.ToString(), one.second);
      };
      return story_.SetState(state, "PS_LOST",
                             "what uses variables on a parameter server that is lost waits for it, "
                             "and fails if it stays away: " +
                                 Joined(driver_.away, kMostNamed, text));
    }
    if (driver_.ready) return story_.SetState(state, "", "");
    if (!driver_.running && !Missing().empty()) {
      return story_.SetState(state, "WAITING_FOR_TASKS",
                             "main() waits to begin for " + MissingTasks());
    }
    return story_.SetState(state, "STARTING_PROGRAM", "the process of main() is started");
  }
  if (workers.empty()) {
    return story_.SetState(state, "WAITING_FOR_TASKS", "waiting for " + MissingTasks());
  }
  if (const std::string unfit = fitness_.Reasons(workers); !unfit.empty()) {
    return story_.SetState(state, "NO_FIT_WORKER",
                           "no worker can start an executor; they are asked again: " + unfit);
  }
  story_.SetState(state, "STARTING_EXECUTORS", "workers start the program's executors");
}

// --- Stop, and the end.

// main() is asked to end, and ends the job; after `grace` it is made to.
void ProgramJob::BeginStop(Millis grace) {
  if (succeeds_) return End(v1::JOB_STATE_SUCCEEDED, Ok(), std::string(*succeeds_));
  if (!driver_.running) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               "stopped while its main() did not run");
  }
  const Millis limit = grace.count() > 0 ? grace : world_.options.stop_grace;
  TellStop(limit);
  RefreshReason();
  EndAfter(limit, fmt::format("stopped: its main() had not ended in the {:.1f} s that it was given",
                              static_cast<double>(limit.count()) / 1000));
}

// While it is being written that main() begins, the row says so of one that may never run.
bool ProgramJob::Settled() const {
  return phase_ != Phase::kBegun || !(driver_.running || driver_.beginning) || given_up_;
}

// A worker's closures go to others, where there are some; a server's variables go nowhere. While
// main() ends with the cluster it may need all of them, to save what it has.
bool ProgramJob::MayLeave(const Member& member) const {
  if (Settled() || !driver_.running) return true;
  if (member.task.type == "ps") {
    const auto& held = member.heartbeat.job_bytes();
    return std::none_of(held.begin(), held.end(),
                        [this](const v1::JobBytes& one) { return one.job_id() == id(); });
  }
  if (!executors_.contains(member.task)) return true;
  const bool others = std::any_of(executors_.begin(), executors_.end(), [&](const auto& one) {
    const Member* other = world_.members.Find(one.first);
    return one.second.ready && other != nullptr && other->state == Member::State::kUp;
  });
  return others && !world_.draining;
}

void ProgramJob::OnClusterDraining() {
  if (phase_ != Phase::kBegun || !driver_.running) return;
  story_.Tell("CLUSTER_DRAINING", "the cluster was asked to end: main() is asked to end, too");
  TellStop(world_.options.stop_grace);
}

void ProgramJob::GiveUpCut(const std::string& why) {
  if (Settled()) return;
  given_up_ = true;
  if (driver_.running) {
    story_.Tell("DRAIN_UNSAVED",
                fmt::format("main() did not end with the cluster, and is killed: {}", why), nullptr,
                {{"why", why}});
  } else if (driver_.beginning) {
    // It begins no more. A disk that answers late has the row without it last.
    story_.record().set_driver_begun(false);
    story_.Persist();
  }
  if (world_.on_settled) world_.on_settled();
}

void ProgramJob::ForgetMoment() {
  v1::Job& job = *story_.record().mutable_job();
  if (!job.has_program()) return;
  v1::ProgramReport& report = *job.mutable_program();
  report.clear_phase();
  report.set_closures_per_second(0);
  report.set_queued(0);
  report.set_in_flight(0);
}

Story::Fields ProgramJob::CloseProgress() {
  ForgetMoment();
  return {{"closures", std::to_string(record().job().program().done())}};
}

// Executors, what servers hold of it, and the driver if it still runs.
void ProgramJob::LetGo() {
  if (!HasBegun()) return;
  // One that was lost and is back may still have what it had.
  std::vector<const Member*> workers = world_.members.Up("worker");
  for (const Member* leaving : world_.members.Draining()) {
    if (executors_.contains(leaving->task)) workers.push_back(leaving);
  }
  for (const Member* worker : workers) {
    v1::Command command;
    v1::StopExecutor& stop = *command.mutable_stop_executor();
    stop.set_job_id(id());
    stop.set_epoch(world_.epoch.value());
    stop.set_view(record().plan().view());
    world_.commands.Send(*worker, command, kLetGoLimit, [](auto) {});
  }
  executors_.clear();
  DropOnServers();
  driver_.let_go = driver_.running;
  if (driver_.running) world_.drivers.Stop(id(), kDriverGrace);
  if (evaluator_.running) world_.drivers.Stop(EvaluatorOf(id()), kDriverGrace);
}

void ProgramJob::DropOnServers() {
  for (const Member* server : world_.members.Up("ps")) {
    world_.commands.Send(*server, DropCommand(id(), world_.epoch, ViewId(record().plan().view())),
                         kLetGoLimit, [](auto) {});
  }
}

}  // namespace muster::coordinator
