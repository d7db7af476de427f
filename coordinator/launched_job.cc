#include "coordinator/launched_job.h"

#include <algorithm>

#include "coordinator/launch_commands.h"

namespace muster::coordinator {

bool LaunchedJob::BeginsOn(bool enough) {
  if (world_.draining) {
    RetryAfter(Millis(1'000), "CLUSTER_DRAINING", "it begins when the coordinator is back");
    return false;
  }
  if (!enough) {
    RetryAfter(Millis(1'000), "NO_FIT_WORKER",
               "too few workers can run it; they are asked again: " +
                   fitness_.Reasons(world_.members.Up("worker")));
    return false;
  }
  story_.BeginNext();
  return true;
}

LaunchNumber LaunchedJob::NextNumber() {
  number_ = LaunchNumber(InEpoch(world_.epoch, ++launches_started_));
  return number_;
}

// --- A restart of the coordinator.

std::string LaunchedJob::AfterRestart() const {
  if (record().plan().view() == 0) return "the command has not begun yet; it waits for its workers";
  if (record().stop_requested()) return "its processes have what is left of their time to end";
  return "its processes go on; their workers tell what became of them";
}

bool LaunchedJob::BegunInRow() const {
  const v1::Job& job = record().job();
  // One that was started again and has not heard of all processes yet is no other.
  const bool adopting =
      job.state() == v1::JOB_STATE_RESTORING && job.reason() == "COORDINATOR_RESTARTED";
  const bool began =
      job.state() == v1::JOB_STATE_RUNNING || job.state() == v1::JOB_STATE_STOPPING || adopting;
  return record().plan().view() > 0 && began && !job.launch().tasks().empty();
}

bool LaunchedJob::HasBegunBefore() {
  number_ = LaunchNumber(record().job().launch().launch());
  if (BegunInRow()) {
    KeepSlot();
    return true;
  }
  story_.SetState(v1::JOB_STATE_PENDING, "COORDINATOR_RESTARTED", "waiting for its tasks");
  return false;
}

std::string LaunchedJob::Forget(bool anew) {
  Leave();
  fitness_.Clear();
  v1::Job& job = *story_.record().mutable_job();
  job.clear_launch();
  job.set_restarts(0);
  return anew ? "submitted again with --restart: its processes begin anew"
              : "submitted again: its processes begin anew; what they go on from is their own";
}

// --- Its workers and processes.

Millis LaunchedJob::NoteUnfit(const TaskId& worker, const Status& why) {
  const auto [pause, told] = fitness_.LeaveOut(worker, why, world_.scheduler.Now());
  if (!told) {
    story_.Tell("WORKER_UNFIT",
                fmt::format("{} cannot run it and is left out: {}; it is asked again in {} s, then "
                            "less often",
                            worker.ToString(), Message(why), pause.count() / 1000),
                &worker, {{"code", std::string(CodeName(why.code()))}});
  }
  return pause;
}

v1::LaunchProcess LaunchedJob::ProcessAt(std::size_t number, const std::string& workers,
                                         const std::map<std::size_t, std::string>& hosts,
                                         std::size_t world_size) const {
  v1::LaunchProcess process;
  *process.mutable_task() = ToProto({"worker", static_cast<int>(number)});
  // Local numbers count on a host, whichever worker runs a process there: devices are the host's.
  std::size_t local = 0, locals = 0;
  const std::string& own = hosts.at(number);
  for (const auto& [other, host] : hosts) {
    if (host != own) continue;
    ++locals;
    local += other < number ? 1 : 0;
  }
  auto& environment = *process.mutable_environment();
  environment["TF_CONFIG"] =
      fmt::format(R"({{"cluster": {{"worker": {}}}, "task": {{"type": "worker", "index": {}}}}})",
                  workers, number);
  environment["RANK"] = std::to_string(number);
  environment["WORLD_SIZE"] = std::to_string(world_size);
  environment["LOCAL_RANK"] = std::to_string(local);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(locals);
  environment["MUSTER_JOB_ID"] = id();
  environment["MUSTER_RESTARTS"] = std::to_string(record().job().restarts());
  return process;
}

// --- Stop, and the end.

void LaunchedJob::BeginStop(Millis grace) {
  if (phase_ != Phase::kBegun || !HasProcesses()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               "stopped while no process of it ran");
  }
  const Millis limit = grace.count() > 0 ? grace : world_.options.stop_grace;
  // A coordinator that is started again keeps to it.
  story_.record().set_stop_until_ms(story_.WallMs() + limit.count());
  story_.SetState(v1::JOB_STATE_STOPPING, "STOP_REQUESTED", "its processes are asked to end");
  story_.Persist();
  EndWithin(limit);
}

void LaunchedJob::GoOnStopping() {
  // The row may have been written before that.
  if (record().stop_until_ms() == 0) {
    story_.record().set_stop_until_ms(story_.WallMs() + world_.options.stop_grace.count());
  }
  story_.SetState(v1::JOB_STATE_STOPPING, "STOP_REQUESTED", "its processes are asked to end");
  story_.Persist();
  EndWithin(GraceLeft());
}

Millis LaunchedJob::GraceLeft() const {
  if (!record().stop_requested()) return EndGraceOf(launch());
  if (stop_until_) {
    const TimePoint::duration left = *stop_until_ - world_.scheduler.Now();
    return std::max(Millis(0), std::chrono::duration_cast<Millis>(left));
  }
  return std::max(Millis(0), Millis(record().stop_until_ms() - story_.WallMs()));
}

// Asks its processes to end, and ends without those that have not told that they did.
void LaunchedJob::EndWithin(Millis limit) {
  stop_until_ = world_.scheduler.Now() + limit;
  EndAfter(limit + kStopMargin,
           fmt::format("stopped: not all workers have said that its processes ended in {:.1f} s",
                       static_cast<double>((limit + kStopMargin).count()) / 1000));
  BeginEnding(limit);
}

Story::Fields LaunchedJob::CloseProgress() {
  return {{"restarts", std::to_string(record().job().restarts())}};
}

// Whatever of it is left anywhere, and its working folders.
void LaunchedJob::LetGo() {
  if (record().plan().view() == 0) return;
  std::vector<const Member*> workers = world_.members.Up("worker");
  for (const Member* leaving : world_.members.Draining()) workers.push_back(leaving);
  for (const Member* worker : workers) {
    if (worker->task.type != "worker") continue;
    world_.commands.Send(*worker, StopCommand(id(), number_, Millis(0), true), kEndMargin,
                         [](auto) {});
  }
}

}  // namespace muster::coordinator
