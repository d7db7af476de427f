#include "coordinator/story.h"

#include <algorithm>
#include <iterator>

#include "common/base/words.h"
#include "common/messages/job_state.h"
#include "coordinator/plan.h"

namespace muster::coordinator {

Story::Story(World& world, StoredJob stored)
    : world_(world),
      record_(std::move(stored.record)),
      events_(std::make_move_iterator(stored.events.begin()),
              std::make_move_iterator(stored.events.end())),
      events_complete_(!events_.empty() || stored.last_event == 0),
      checkpoints_(std::move(stored.checkpoints)),
      last_event_(stored.last_event),
      parked_(world.scheduler) {
  for (const v1::CheckpointInfo& info : checkpoints_) {
    if (!info.refused().empty()) refused_.insert(info.directory());
  }
  // Changes after the last row that was written may have been seen by readers: go past them,
  // however many there were. (A journal from a backup has an older epoch than some readers.)
  record_.mutable_job()->set_version(
      std::max(record_.job().version() + 10'000, InEpoch(world.epoch, 0)));
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
  // An event that had no room to wait for the disk is still shown while this coordinator lives.
  ++events_unwritten_;
  world_.journal.AddEvent(id(), event, [this, here = lifeline_.Watch()](const Status& status) {
    if (!here() || !status.ok()) return;
    if (--events_unwritten_ == 0 && drop_events_) DropEvents();
  });
  events_.push_back(std::move(event));
  ForgetOne();
  Touch();
}

// The same one as the journal does.
void Story::ForgetOne() {
  if (events_.size() <= Journal::kMaxEvents) return;
  const auto last = events_.end() - static_cast<std::ptrdiff_t>(Journal::kNewestEvents);
  const auto routine = std::find_if(events_.begin(), last, [](const v1::Event& event) {
    return std::ranges::find(Journal::kRoutine, event.reason()) != Journal::kRoutine.end();
  });
  events_.erase(routine == last ? events_.begin() : routine);
}

// What the journal has, then what it may not have yet.
void Story::LoadEvents(std::function<void(Result<std::vector<v1::Event>>)> then) const {
  if (events_complete_) return then(std::vector<v1::Event>(events_.begin(), events_.end()));
  world_.journal.LoadEvents(id(), [this, here = lifeline_.Watch(),
                                   then = std::move(then)](Result<std::vector<v1::Event>> loaded) {
    if (!here()) return then(NotFound("the job was forgotten meanwhile"));
    if (!loaded.ok()) return then(loaded.status());
    const std::uint64_t first = events_.empty() ? UINT64_MAX : events_.front().sequence();
    std::erase_if(*loaded, [first](const v1::Event& event) { return event.sequence() >= first; });
    loaded->insert(loaded->end(), events_.begin(), events_.end());
    then(std::move(loaded));
  });
}

void Story::RecallEvents() {
  drop_events_ = false;
  if (events_complete_) return;
  LoadEvents([this, here = lifeline_.Watch()](Result<std::vector<v1::Event>> all) {
    // Not read: they are asked for again when somebody wants to see them.
    if (!here() || !all.ok() || events_complete_) return;
    events_.assign(std::make_move_iterator(all->begin()), std::make_move_iterator(all->end()));
    while (events_.size() > Journal::kMaxEvents) ForgetOne();
    events_complete_ = true;
  });
}

void Story::DropEvents() {
  drop_events_ = true;
  if (events_unwritten_ > 0) return;
  std::deque<v1::Event>().swap(events_);
  events_complete_ = false;
}

void Story::SetState(v1::JobState state, const std::string& reason, const std::string& message,
                     Done done) {
  v1::Job& job = *record_.mutable_job();
  if (job.state() == state && job.reason() == reason && job.message() == message) return;
  const bool durable = job.state() != state;
  job.set_state(state);
  job.set_reason(reason);
  job.set_message(message);
  Touch();
  if (durable) Persist(std::move(done));
}

void Story::BeginNext() {
  v1::JobPlan& plan = *record_.mutable_plan();
  plan.set_job_id(id());
  plan.set_job_number(record_.number());
  plan.set_epoch(world_.epoch.value());
  plan.set_view(plan.view() + 1);
  record_.set_begin_anew(false);
}

void Story::Touch() {
  record_.mutable_job()->set_version(record_.job().version() + 1);
  parked_.Recheck();
}

// --- The row.

void Story::Persist(Done done) {
  world_.journal.SaveJob(record_, [this, here = lifeline_.Watch(), change = ++changes_,
                                   done = std::move(done)](const Status& status) {
    if (!here()) return;
    OnWritten(change, status);
    if (done) done(status);
  });
}

// Counts it, and tells when the journal begins to fail.
void Story::OnWritten(std::uint64_t change, const Status& status) {
  answered_ = std::max(answered_, change);
  if (status.ok()) {
    written_ = std::max(written_, change);
    journal_failing_ = false;
    if (before_end_ && written_ >= end_change_) {
      before_end_.reset();
      Touch();
    }
  } else if (!std::exchange(journal_failing_, true)) {
    Tell("JOURNAL_FAILED",
         "the coordinator cannot write its database (" + ToString(status) +
             "); until it can, a restart of the coordinator would lose what happens now");
    PersistLater();
  }
  parked_.Recheck();
}

void Story::PersistLater() {
  (void)world_.scheduler.RunAfter(Millis(1'000), [this, here = lifeline_.Watch()] {
    if (!here() || !journal_failing_) return;
    Persist([this](const Status& status) {
      if (!status.ok()) PersistLater();
    });
  });
}

Status Story::NotWritten() const {
  return Unavailable(
      "the coordinator {}: what was asked of job {} holds until the coordinator is restarted; "
      "`muster describe {}` tells when it is written",
      journal_failing_ ? "cannot write its database" : "waits for its database's disk", id(), id());
}

void Story::WhenWritten(Done then) {
  parked_.Add(JournalWriter::kAnswerLimit,
              [this, change = changes_, then = std::move(then)](bool last) {
                const bool answered = written_ >= change || answered_ >= change || last;
                if (answered) then(written_ >= change ? Ok() : NotWritten());
                return answered;
              });
}

void Story::NoteEnd(const v1::Job& before) {
  before_end_ = before;
  end_change_ = changes_;
}

v1::Job Story::Shown() const {
  v1::Job job = record_.job();
  if (!before_end_) return job;
  const std::string ended = fmt::format(
      "has ended ({}), which cannot be written to the database "
      "yet: {}",
      StateName(job.state()), job.message());
  job.set_state(before_end_->state());
  job.set_reason(journal_failing_ ? "JOURNAL_UNAVAILABLE" : before_end_->reason());
  job.set_message(journal_failing_ ? ended : before_end_->message());
  job.set_ended_ms(0);
  return job;
}

void Story::Show(const std::vector<Figure>& figures) const {
  if (world_.figures != nullptr) world_.figures->Add(id(), FiguresFolder(), figures);
}

v1::DataFiles Story::DataOn(const std::string& host) const {
  if (const auto found = record_.data().find(host); found != record_.data().end()) {
    return found->second;
  }
  if (record_.data().empty()) return {};
  v1::DataFiles data = record_.data().begin()->second;
  for (v1::DataFile& file : *data.mutable_training()) file.clear_mtime_ns();
  for (v1::DataFile& file : *data.mutable_evaluation()) file.clear_mtime_ns();
  return data;
}

// --- Its checkpoints.

void Story::AddCheckpoint(const v1::CheckpointInfo& info,
                          const std::optional<std::vector<std::string>>& kept) {
  std::erase_if(checkpoints_, [&](const v1::CheckpointInfo& old) {
    const bool gone =
        old.step() == info.step() ||
        (kept && std::find(kept->begin(), kept->end(), old.directory()) == kept->end());
    if (gone) world_.journal.DeleteCheckpoint(id(), old.step());
    return gone;
  });
  refused_.erase(info.directory());
  checkpoints_.push_back(info);
  world_.journal.SaveCheckpoint(id(), info);
}

void Story::UpdateCheckpoint(const v1::CheckpointInfo& info) {
  const auto known = std::find_if(checkpoints_.begin(), checkpoints_.end(), [&](const auto& one) {
    return one.step() == info.step() && one.created_ms() == info.created_ms();
  });
  if (known == checkpoints_.end()) return;
  // It may have been found damaged while it was evaluated.
  const std::string refused = known->refused();
  *known = info;
  if (!refused.empty()) known->set_refused(refused);
  world_.journal.SaveCheckpoint(id(), *known);
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
  world_.journal.SaveCheckpoint(id(), *known);
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
    world_.journal.DeleteCheckpoint(id(), info.step());
  }
  checkpoints_.clear();
}

void Story::ForgetCheckpoints(const std::set<std::string>& gone) {
  std::erase_if(checkpoints_, [&](const v1::CheckpointInfo& info) {
    if (!gone.contains(info.directory())) return false;
    world_.journal.DeleteCheckpoint(id(), info.step());
    return true;
  });
  Touch();
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
