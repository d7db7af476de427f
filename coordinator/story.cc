#include "coordinator/story.h"

#include <algorithm>
#include <iterator>

#include "common/base/words.h"
#include "coordinator/plan.h"

namespace muster::coordinator {

std::string StateName(v1::JobState state) {
  return v1::JobState_Name(state).substr(sizeof("JOB_STATE_") - 1);
}

Story::Story(World& world, StoredJob stored)
    : world_(world),
      record_(std::move(stored.record)),
      events_(std::make_move_iterator(stored.events.begin()),
              std::make_move_iterator(stored.events.end())),
      checkpoints_(std::move(stored.checkpoints)),
      parked_(world.scheduler) {
  // An ended job has none here, and tells no more.
  if (!events_.empty()) last_event_ = events_.back().sequence();
  for (const v1::CheckpointInfo& info : checkpoints_) {
    if (!info.refused().empty()) refused_.insert(info.directory());
  }
  // Changes after the last row that was written may have been seen by readers: go past them.
  record_.mutable_job()->set_version(record_.job().version() + 10'000);
}

std::int64_t Story::WallMs() const {
  return std::chrono::duration_cast<Millis>(world_.scheduler.WallNow().time_since_epoch()).count();
}

// --- Events and states.

void Story::Tell(const std::string& reason, const std::string& message, const TaskId* task,
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

std::vector<v1::Event> Story::Events() const {
  if (events_.empty()) {
    if (auto events = world_.journal.LoadEvents(id()); events.ok()) return *std::move(events);
  }
  return {events_.begin(), events_.end()};
}

void Story::RecallEvents() {
  if (!events_.empty()) return;
  for (v1::Event& event : Events()) events_.push_back(std::move(event));
  if (!events_.empty()) last_event_ = events_.back().sequence();
}

void Story::DropEvents() {
  if (!events_unsaved_) std::deque<v1::Event>().swap(events_);
}

void Story::SetState(v1::JobState state, const std::string& reason, const std::string& message) {
  v1::Job& job = *record_.mutable_job();
  if (job.state() == state && job.reason() == reason && job.message() == message) return;
  const bool durable = job.state() != state;
  job.set_state(state);
  job.set_reason(reason);
  job.set_message(message);
  Touch();
  if (durable) (void)Persist();
}

void Story::Touch() {
  record_.mutable_job()->set_version(record_.job().version() + 1);
  parked_.Recheck();
}

// --- The row.

Status Story::Persist() {
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

void Story::PersistLater() {
  (void)world_.scheduler.RunAfter(Millis(1'000), [this, weak = std::weak_ptr<Story*>(self_)] {
    if (!weak.expired() && journal_failing_ && !Persist().ok()) PersistLater();
  });
}

Status Story::Written() const {
  if (!journal_failing_) return Ok();
  return Unavailable(
      "the coordinator cannot write its database: what was asked of job {} holds until the "
      "coordinator is restarted; `muster describe {}` tells when it is written",
      id(), id());
}

void Story::NoteEnd(v1::JobState before) {
  if (journal_failing_) unwritten_end_ = before;
}

v1::Job Story::Shown() const {
  v1::Job job = record_.job();
  if (!unwritten_end_) return job;
  job.set_message(fmt::format("has ended ({}), which cannot be written to the database yet: {}",
                              StateName(job.state()), job.message()));
  job.set_reason("JOURNAL_UNAVAILABLE");
  job.set_state(*unwritten_end_);
  job.set_ended_ms(0);
  return job;
}

// --- Its checkpoints.

void Story::AddCheckpoint(const v1::CheckpointInfo& info,
                          const std::optional<std::vector<std::string>>& kept) {
  std::erase_if(checkpoints_, [&](const v1::CheckpointInfo& old) {
    const bool gone =
        old.step() == info.step() ||
        (kept && std::find(kept->begin(), kept->end(), old.directory()) == kept->end());
    if (gone) (void)world_.journal.DeleteCheckpoint(id(), old.step());
    return gone;
  });
  refused_.erase(info.directory());
  checkpoints_.push_back(info);
  (void)world_.journal.SaveCheckpoint(id(), info);
}

void Story::MarkRefused(const Checkpoints::Refusal& refusal) {
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

void Story::ForgetCheckpoints() {
  for (const v1::CheckpointInfo& info : checkpoints_) {
    (void)world_.journal.DeleteCheckpoint(id(), info.step());
  }
  checkpoints_.clear();
}

std::string Story::NoSoundCheckpoint() const {
  if (refused_.empty()) return "there is no checkpoint";
  return fmt::format("{} {} damaged, there is no other", Counted(refused_.size(), "checkpoint"),
                     Agreeing(refused_.size(), "is", "are"));
}

std::string Story::CheckpointRoot() const {
  const std::string directory = CheckpointFolder(spec());
  return directory.empty() ? world_.options.checkpoints_directory + "/" + id() : directory;
}

}  // namespace muster::coordinator
