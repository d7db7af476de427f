// An elastic job from its beginning to its end, and what people see of it.
#include "coordinator/elastic_job.h"

#include <algorithm>

#include "common/base/words.h"
#include "common/messages/status_proto.h"
#include "coordinator/launch_commands.h"
#include "coordinator/restarts.h"

namespace muster::coordinator {
namespace {

constexpr const char* kMakingReady = "workers fetch its files and claim addresses";

// "1 process of at least 2 is there: they wait for 1 more worker".
std::string WaitText(std::size_t there, std::size_t least, const char* how) {
  return fmt::format("{} of at least {} {} {}: they wait for {}", Counted(there, "process"), least,
                     Agreeing(there, "is", "are"), how, Counted(least - there, "more worker"));
}

}  // namespace

std::size_t ElasticJob::Least() const {
  return std::max<std::size_t>(1, story_.spec().strategy().workers());
}

std::size_t ElasticJob::Most() const {
  return std::max<std::size_t>(Least(), story_.spec().strategy().max_workers());
}

std::vector<std::string> ElasticJob::Missing() const {
  return world_.members.MissingWorkers(Least());
}

void ElasticJob::Begin() {
  if (!BeginsOn(Choose().size() >= Least())) return;
  story_.SetState(
      record().job().started_ms() > 0 ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_STARTING,
      "STARTING_PROCESSES", kMakingReady);
  Fill();
}

void ElasticJob::Leave() {
  places_.clear();
  began_ = complete_ = late_ = ending_ = false;
  story_.record().clear_failure();
  failures_ = 0;
  not_before_ = told_until_ = TimePoint();
  tells_ = false;
}

// --- A restart of the coordinator.

void ElasticJob::GoOnAfterRestart() {
  if (!HasBegunBefore()) return;
  for (const v1::LaunchedTask& task : record().job().launch().tasks()) {
    if (places_.size() <= task.task().index()) places_.resize(task.task().index() + 1);
    Place& place = places_[task.task().index()];
    place.worker = FromProto(task.worker());
    place.hostname = task.hostname();
    place.address = task.address();
    place.launch = LaunchNumber(task.launch());
    place.pid = task.pid();
    place.how = task.how();
    place.began = world_.scheduler.Now();
    if (task.state() == "lost") place.stage = Stage::kLost;
    if (task.state() == "starting" || task.state() == "running") place.stage = Stage::kRunning;
    complete_ = complete_ || (task.state() == "ended" && task.how() == kEndedWell);
    late_ = late_ || (task.state() == "ended" && task.how().ends_with(kTooLate));
    // Who is not replaced was not by the coordinator before this one either.
    if (!Replaces() && task.state() == "ended" && IsFailureText(task.how())) failures_ = 1;
  }
  began_ = true;
  phase_ = Phase::kBegun;
  (void)world_.scheduler.RunAfter(kAdoptLimit, Guard([this] { OnAdoptLimit(); }));
  if (record().stop_requested()) return GoOnStopping();
  // The others had been asked to end, but where they had come to their end by themselves.
  if (fails() && !complete_) BeginEnding(EndGraceOf(launch()));
  story_.SetState(v1::JOB_STATE_RUNNING, "COORDINATOR_RESTARTED",
                  fails() ? "its processes end; their workers tell what became of them"
                          : "its processes go on; their workers tell what became of them");
}

// Those that are only made ready need not be waited for: nothing of them runs.
bool ElasticJob::HasProcesses() const {
  return std::ranges::any_of(places_, [](const Place& one) {
    return one.stage == Stage::kStarting || one.stage == Stage::kRunning;
  });
}

// --- What people see.

std::string ElasticJob::NameOf(std::size_t place) const {
  const Place& one = places_[place];
  return fmt::format("worker:{} (on {} of {})", place, one.worker.ToString(), one.hostname);
}

void ElasticJob::Show() {
  v1::LaunchState& state = *story_.record().mutable_job()->mutable_launch();
  state.set_launch(number_.value());
  state.clear_tasks();
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (place.launch == LaunchNumber()) continue;
    v1::LaunchedTask& task = *state.add_tasks();
    *task.mutable_task() = ToProto({"worker", static_cast<int>(i)});
    *task.mutable_worker() = ToProto(place.worker);
    task.set_hostname(place.hostname);
    task.set_address(place.address);
    task.set_pid(place.pid);
    task.set_launch(place.launch.value());
    task.set_how(place.how);
    task.set_state(place.stage == Stage::kVacant    ? "ended"
                   : place.stage == Stage::kLost    ? "lost"
                   : place.stage == Stage::kRunning ? "running"
                                                    : "starting");
  }
  story_.Touch();
}

void ElasticJob::SayState() {
  if (ending_ || record().stop_requested()) return;
  if (!began_ && !complete_) {
    const std::size_t live = Live();
    const bool few = live < Least();
    return story_.SetState(record().job().state(),
                           few ? "WAITING_FOR_WORKERS" : "STARTING_PROCESSES",
                           few ? WaitText(live, Least(), "made ready") : kMakingReady);
  }
  const auto run =
      static_cast<std::size_t>(std::count_if(places_.begin(), places_.end(), [](const Place& one) {
        return one.stage == Stage::kRunning;
      }));
  if (complete_) {
    return story_.SetState(v1::JOB_STATE_RUNNING, "ENDING", "its last step is done");
  }
  if (run >= Least()) return story_.SetState(v1::JOB_STATE_RUNNING, "", "");
  story_.SetState(v1::JOB_STATE_RUNNING, "WAITING_FOR_WORKERS", WaitText(run, Least(), "there"));
}

void ElasticJob::DescribeWorker(const TaskId& worker, v1::TaskState& state) const {
  state.set_executor_pid(0);
  for (const Place& place : places_) {
    if (place.worker == worker && place.live()) state.set_executor_pid(place.pid);
  }
}

bool ElasticJob::Occupies(const TaskId& worker) const {
  return std::any_of(places_.begin(), places_.end(),
                     [&](const Place& place) { return place.worker == worker && place.live(); });
}

// --- Stop, and the end.

// The processes go on without this coordinator, unless their workers end, too.
void ElasticJob::OnClusterDraining() {
  if (phase_ != Phase::kBegun || ending_) return;
  story_.Tell("CLUSTER_DRAINING",
              "the coordinator was asked to end: processes go on where their workers do");
  story_.Persist();
}

void ElasticJob::GoOn() {
  if (phase_ != Phase::kBegun) return;
  if (IsBeyondHope()) {
    WillFail(
        Unavailable("fewer than {} of its processes are left, and none is started again", Least()));
    BeginEnding(EndGraceOf(launch()));
  }
  Fill();
  if (Live() == 0) return Conclude();
  Show();
  SayState();
  story_.Persist();
}

// Nobody is left, or all have been waited for long enough.
void ElasticJob::Conclude() {
  Show();
  if (world_.on_settled) world_.on_settled();
  if (record().stop_requested()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               "stopped as asked; its processes have ended");
  }
  if (fails()) return Fail(FromProto(record().failure()));
  if (complete_) {
    return End(v1::JOB_STATE_SUCCEEDED, Ok(), "done: its processes ended with exit code 0");
  }
  if (world_.draining) {
    return RetryAfter(Millis(1'000), "CLUSTER_DRAINING", "it goes on when the coordinator is back");
  }
  // One that was lost as it started may live, and keeps its place.
  const bool may_live =
      std::ranges::any_of(places_, [](const Place& one) { return one.stage == Stage::kLost; });
  if (!began_ && !may_live) {
    return RetryAfter(Millis(1'000), "STARTING_PROCESSES",
                      "no worker could begin; they are asked again");
  }
  // Some come yet: after a pause, or when there is a worker.
  SayState();
  story_.Persist();
}

}  // namespace muster::coordinator
