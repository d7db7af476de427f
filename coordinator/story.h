// What is known of a job and told about it: its row in the journal, its events, the list of its
// checkpoints, and the calls that wait for any of this to change.
//
// Threading: not thread-safe; the coordinator's strand. Lifetime: the World outlives it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/lifeline.h"
#include "coordinator/parked_calls.h"
#include "coordinator/world.h"
#include "muster/v1/journal.pb.h"

namespace muster::coordinator {

class Story {
 public:
  using Fields = std::vector<std::pair<std::string, std::string>>;
  using Done = JournalWriter::Done;

  // The row is in the journal already.
  Story(World& world, StoredJob stored);
  Story(const Story&) = delete;
  Story& operator=(const Story&) = delete;

  const std::string& id() const { return record_.job().id(); }
  const v1::JobRecord& record() const { return record_; }
  v1::JobRecord& record() { return record_; }
  const v1::JobPlan& plan() const { return record_.plan(); }
  const v1::JobSpec& spec() const { return record_.job().spec(); }

  // --- Events and states.
  // An event now. `lines`: the task's last output.
  void Tell(const std::string& reason, const std::string& message, const TaskId* task = nullptr,
            const Fields& fields = {}, const std::vector<std::string>& lines = {});
  // Written when the state itself changes; reason and message alone are not. `done` as for
  // Persist(), where it is written.
  void SetState(v1::JobState state, const std::string& reason, const std::string& message,
                Done done = nullptr);
  // Something that people see has changed: readers that wait are asked again.
  void Touch();
  // The newest, oldest first, as far as they are kept here: of a job that has ended none.
  const std::deque<v1::Event>& events() const { return events_; }
  // All of them, now or when they were read from the journal.
  void LoadEvents(std::function<void(Result<std::vector<v1::Event>>)> then) const;
  // A job that had ended goes on: they are kept here again.
  void RecallEvents();
  // The job has ended: nothing keeps them here once the journal has all of them.
  void DropEvents();

  // --- The row.
  // The plan of a beginning that no earlier one is mistaken for: of this epoch, one view further.
  void BeginNext();
  // Writes it. `done` comes when it is on disk, or could not be written; never inside the call. A
  // failure is told once; it is tried again until it is written.
  void Persist(Done done = nullptr);
  // `then` comes when what was changed until now is on disk. kUnavailable: it could not be written,
  // or not yet (JournalWriter::kAnswerLimit). It is tried until it is; a coordinator that is
  // restarted before that knows nothing of it.
  void WhenWritten(Done then);
  // The job has just ended, and was in this state before: readers see that until the end is
  // written.
  void NoteEnd(const v1::Job& before);
  // It goes on after all.
  void ForgetEnd() { before_end_.reset(); }
  // The job as people see it, without events and checkpoints.
  v1::Job Shown() const;

  // --- Its checkpoints.
  const std::vector<v1::CheckpointInfo>& checkpoints() const { return checkpoints_; }
  // Damaged ones: directories that are passed over.
  const std::set<std::string>& refused() const { return refused_; }
  // `kept`: directories that are still there, where that is known.
  void AddCheckpoint(const v1::CheckpointInfo& info,
                     const std::optional<std::vector<std::string>>& kept);
  // In place of what is known of it; nothing where it is not there any more.
  void UpdateCheckpoint(const v1::CheckpointInfo& info);
  void MarkRefused(const Checkpoints::Refusal& refusal);
  void ForgetRefusals() { refused_.clear(); }
  // They were moved away.
  void ForgetCheckpoints();
  // These directories are gone.
  void ForgetCheckpoints(const std::set<std::string>& gone);
  // "there is no checkpoint", or how many are damaged.
  std::string NoSoundCheckpoint() const;
  // The folder that holds them.
  std::string CheckpointRoot() const;

  // --- Its figures.
  // Where its event files are.
  std::string FiguresFolder() const { return CheckpointRoot() + "/tensorboard"; }
  // To whoever keeps them.
  void Show(const std::vector<Figure>& figures) const;

  // The data files as the check found them on that host; on one that it has not seen what another
  // host has, but for the time.
  v1::DataFiles DataOn(const std::string& host) const;
  std::int64_t WallMs() const;
  ParkedCalls& parked() { return parked_; }
  const ParkedCalls& parked() const { return parked_; }

 private:
  void ForgetOne();
  void PersistLater();
  void OnWritten(std::uint64_t change, const Status& status);
  Status NotWritten() const;

  World& world_;
  v1::JobRecord record_;
  std::deque<v1::Event> events_;
  // `events_` begins with the oldest that the journal keeps.
  bool events_complete_;
  std::vector<v1::CheckpointInfo> checkpoints_;
  std::set<std::string> refused_;
  std::uint64_t last_event_ = 0;
  // So many are not on disk.
  std::size_t events_unwritten_ = 0;
  bool drop_events_ = false;
  // Changes of the row: how many there were, and the newest that is on disk, or was refused.
  std::uint64_t changes_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t answered_ = 0;
  bool journal_failing_ = false;
  // What people saw before the end, while that is not written, and the change that it is.
  std::optional<v1::Job> before_end_;
  std::uint64_t end_change_ = 0;
  ParkedCalls parked_;
  Lifeline lifeline_;
};

}  // namespace muster::coordinator
