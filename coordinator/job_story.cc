// Rows, events, and what describe shows.
#include <algorithm>

#include "common/base/words.h"
#include "coordinator/job.h"
#include "coordinator/plan.h"

namespace muster::coordinator {

std::string StateName(v1::JobState state) {
  return v1::JobState_Name(state).substr(sizeof("JOB_STATE_") - 1);
}

std::string Job::NoSoundCheckpoint() const {
  if (refused_.empty()) return "there is no checkpoint";
  return fmt::format("{} {} damaged, there is no other", Counted(refused_.size(), "checkpoint"),
                     Agreeing(refused_.size(), "is", "are"));
}

std::int64_t Job::WallMs() const {
  return std::chrono::duration_cast<Millis>(world_.scheduler.WallNow().time_since_epoch()).count();
}

void Job::Tell(const std::string& reason, const std::string& message, const TaskId* task,
               const Fields& fields, const std::vector<std::string>& lines) {
  v1::Event event;
  event.set_sequence(++last_event_);
  event.set_time_ms(WallMs());
  event.set_reason(reason);
  event.set_message(message);
  if (task != nullptr) *event.mutable_task() = ToProto(*task);
  for (const auto& [key, value] : fields) (*event.mutable_fields())[key] = value;
  for (const std::string& line : lines) event.add_log_lines(line);
  if (world_.on_event) world_.on_event(id(), event);
  // An event that the disk refuses is still shown while this coordinator lives.
  if (!world_.journal.AddEvent(id(), event).ok()) events_unsaved_ = true;
  events_.push_back(std::move(event));
  if (events_.size() > Journal::kMaxEvents) events_.pop_front();
  Touch();
}

std::vector<v1::Event> Job::Events() const {
  if (ended() && events_.empty()) {
    if (auto events = world_.journal.LoadEvents(id()); events.ok()) return *std::move(events);
  }
  return {events_.begin(), events_.end()};
}

void Job::DropEvents() {
  if (!events_unsaved_) std::deque<v1::Event>().swap(events_);
}

void Job::NoteStall(Millis slept) {
  if (ended() || record_.plan().view() == 0) return;
  Tell("COORDINATOR_STALLED",
       fmt::format(
           "the coordinator itself slept {:.1f} s (stopped, or its machine or its disk stood "
           "still); it heard nobody meanwhile and gives nobody up for that",
           static_cast<double>(slept.count()) / 1000),
       nullptr, {{"slept_ms", std::to_string(slept.count())}});
}

void Job::SetState(v1::JobState state, const std::string& reason, const std::string& message) {
  v1::Job& job = *record_.mutable_job();
  if (job.state() == state && job.reason() == reason && job.message() == message) return;
  const bool durable = job.state() != state;
  job.set_state(state);
  job.set_reason(reason);
  job.set_message(message);
  Touch();
  if (durable) (void)Persist();
}

void Job::Touch() {
  record_.mutable_job()->set_version(record_.job().version() + 1);
  parked_.Recheck();
}

Status Job::Persist() {
  const Status status = world_.journal.SaveJob(record_);
  if (status.ok()) {
    journal_failing_ = false;
    if (std::exchange(unwritten_end_, std::nullopt)) Touch();
  } else if (!std::exchange(journal_failing_, true)) {
    Tell("JOURNAL_FAILED",
         "the coordinator cannot write its database (" + ToString(status) +
             "); until it can, a restart of the coordinator would lose what happens now");
    PersistLater();
  }
  return status;
}

void Job::PersistLater() {
  (void)world_.scheduler.RunAfter(Millis(1'000), [this, weak = std::weak_ptr<Job*>(self_)] {
    if (!weak.expired() && journal_failing_ && !Persist().ok()) PersistLater();
  });
}

Status Job::Written() const {
  if (!journal_failing_) return Ok();
  return Unavailable(
      "the coordinator cannot write its database: what was asked of job {} holds until the "
      "coordinator is restarted; `muster describe {}` tells when it is written",
      id(), id());
}

void Job::HideUnwrittenEnd(v1::Job& job) const {
  if (!unwritten_end_) return;
  job.set_message(fmt::format("has ended ({}), which cannot be written to the database yet: {}",
                              StateName(job.state()), job.message()));
  job.set_reason("JOURNAL_UNAVAILABLE");
  job.set_state(*unwritten_end_);
  job.set_ended_ms(0);
}

void Job::MarkRefused(const Checkpoints::Refusal& refusal) {
  refused_.insert(refusal.directory);
  auto known = std::find_if(checkpoints_.begin(), checkpoints_.end(), [&](const auto& info) {
    return info.directory() == refusal.directory;
  });
  if (known == checkpoints_.end()) {
    known = checkpoints_.insert(checkpoints_.end(), v1::CheckpointInfo());
    known->set_step(refusal.step);
    known->set_directory(refusal.directory);
  }
  known->set_refused(refusal.why);
  (void)world_.journal.SaveCheckpoint(id(), *known);
  Tell("CHECKPOINT_REFUSED",
       fmt::format("the checkpoint of step {} is damaged and is not used: {}; the one before it is "
                   "tried",
                   refusal.step, refusal.why),
       nullptr,
       {{"step", std::to_string(refusal.step)},
        {"directory", refusal.directory},
        {"why", refusal.why}});
}

v1::Job Job::Describe() const {
  v1::Job job = record_.job();
  HideUnwrittenEnd(job);
  for (v1::TaskState& state : world_.members.Describe()) {
    if (state.task().type() == "worker") {
      const auto done = closures_by_.find(FromProto(state.task()));
      state.set_closures_done(done == closures_by_.end() ? 0 : done->second);
      state.set_executor_pid(0);
      const auto executor = executors_.find(FromProto(state.task()));
      if (executor != executors_.end() && executor->second.pid != 0) {
        state.set_executor_pid(executor->second.pid);
      }
    }
    *job.add_tasks() = std::move(state);
  }
  for (v1::Event& event : Events()) *job.add_events() = std::move(event);
  for (const v1::CheckpointInfo& info : checkpoints_) *job.add_checkpoints() = info;
  return job;
}

v1::Job Job::Summary() const {
  v1::Job job = record_.job();
  HideUnwrittenEnd(job);
  job.clear_spec();
  job.clear_variables();
  return job;
}

void Job::Watch(std::uint64_t version, Millis limit, Then<v1::Job> then) {
  parked_.Add(limit, [this, version, then = std::move(then)](bool last) {
    if (!last && record_.job().version() <= version) return false;
    then(Describe());
    return true;
  });
}

std::string Job::CheckpointRoot() const {
  const std::string directory = CheckpointFolder(record_.job().spec());
  return directory.empty() ? world_.options.checkpoints_directory + "/" + id() : directory;
}

}  // namespace muster::coordinator
