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

#include "coordinator/parked_calls.h"
#include "coordinator/world.h"
#include "muster/v1/journal.pb.h"

namespace muster::coordinator {

// "RUNNING", as people read it.
std::string StateName(v1::JobState state);

class Story {
 public:
  using Fields = std::vector<std::pair<std::string, std::string>>;

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
  // Written when the state itself changes; reason and message alone are not.
  void SetState(v1::JobState state, const std::string& reason, const std::string& message);
  // Something that people see has changed: readers that wait are asked again.
  void Touch();
  // Of a job that has ended they are read from the journal when nothing keeps them here.
  std::vector<v1::Event> Events() const;
  // Those in the journal are here again: more will be told.
  void RecallEvents();
  // The job has ended: the journal has all of them, so nothing keeps them here.
  void DropEvents();

  // --- The row.
  // Writes it. A failure is told once; it is tried again until it is written.
  Status Persist();
  // kUnavailable: what was changed last is not in the database yet. It is tried until it is; a
  // coordinator that is restarted before that knows nothing of it.
  Status Written() const;
  // The job has just ended, and was in state `before`: readers see that until the end is written.
  void NoteEnd(v1::JobState before);
  // It goes on after all.
  void ForgetEnd() { unwritten_end_.reset(); }
  // The job as people see it, without events and checkpoints.
  v1::Job Shown() const;

  // --- Its checkpoints.
  const std::vector<v1::CheckpointInfo>& checkpoints() const { return checkpoints_; }
  // Damaged ones: directories that are passed over.
  const std::set<std::string>& refused() const { return refused_; }
  // `kept`: directories that are still there, where that is known.
  void AddCheckpoint(const v1::CheckpointInfo& info,
                     const std::optional<std::vector<std::string>>& kept);
  void MarkRefused(const Checkpoints::Refusal& refusal);
  void ForgetRefusals() { refused_.clear(); }
  // They were moved away.
  void ForgetCheckpoints();
  // "there is no checkpoint", or how many are damaged.
  std::string NoSoundCheckpoint() const;
  // The folder that holds them.
  std::string CheckpointRoot() const;

  std::int64_t WallMs() const;
  ParkedCalls& parked() { return parked_; }
  const ParkedCalls& parked() const { return parked_; }

 private:
  void PersistLater();

  World& world_;
  v1::JobRecord record_;
  std::deque<v1::Event> events_;
  std::vector<v1::CheckpointInfo> checkpoints_;
  std::set<std::string> refused_;
  std::uint64_t last_event_ = 0;
  bool events_unsaved_ = false;
  bool journal_failing_ = false;
  // The state before the end, while that is not written.
  std::optional<v1::JobState> unwritten_end_;
  ParkedCalls parked_;
  // Timers hold this weakly: they do nothing once the job is gone.
  std::shared_ptr<Story*> self_ = std::make_shared<Story*>(this);
};

}  // namespace muster::coordinator
