// One job, from its submission to its end: waits for its tasks and its turn, has its spec checked,
// begins, and tells the story as events.
//
// This class is what all kinds of jobs share: the row, admission, check, watch, stop and end. What
// a job does once it has begun is behind it: a ModelJob (model_job.h) opens views, a ProgramJob
// (program_job.h) keeps a user's program and its executors alive, a LaunchJob (launch_job.h) the
// processes of a command, an ElasticJob (elastic_job.h) those that come and go one by one.
// README.md draws the phases.
//
// It never waits and touches no socket, file or clock of its own: it is told what happened and
// answers with commands, rows and timers through World.
//
// Threading: not thread-safe; the coordinator's strand. Lifetime: the World outlives it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/lifeline.h"
#include "coordinator/story.h"
#include "coordinator/world.h"

namespace muster::coordinator {

class ModelJob;

// What people are answered has so many bytes at most: a message has 16 MiB.
inline constexpr std::size_t kMostAnswerBytes = 12 << 20;

class Job {
 public:
  template <class Reply>
  using Then = std::function<void(Result<Reply>)>;

  // One that has just been submitted (its row is written already), or a loaded one, of the kind
  // that its spec asks for.
  static std::unique_ptr<Job> Make(World& world, StoredJob stored);
  virtual ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& id() const { return story_.id(); }
  const v1::JobRecord& record() const { return story_.record(); }
  bool ended() const { return phase_ == Phase::kEnded; }
  // Nobody waits for an answer, and what it had is let go.
  bool forgettable() const { return ended() && !releasing_ && story_.parked().empty(); }
  bool admitted() const { return admitted_; }
  // Nothing but a slot is missing for it to begin. Who waits for tasks needs none.
  bool WantsSlot() const;
  // It may use the cluster now (not too many jobs run).
  void Admit();
  // It may not, yet: its state says what it waits for (WAITING_FOR_SLOT where no task is missing).
  void AwaitTurn();
  // The coordinator has been restarted: an unfinished job goes on, or ends, as its kind does.
  void NoteRestart(const Predecessor& before);
  // The coordinator stood still for so long, and heard nobody.
  void NoteStall(Millis slept);
  // The journal's disk has not answered for so long.
  void NoteSlowJournal(Millis waited, std::size_t rows);
  // A job that has ended goes on from what it has saved; `anew`: from nothing.
  void Resume(bool anew);

  // For what only model jobs are asked; null: it is none.
  virtual ModelJob* AsModel() { return nullptr; }

  // --- What happens to its tasks.
  void OnUp(const Member& member, const Arrival& arrival);
  void OnDraining(const Member& member);
  // An operator has taken it out, and it is not there: nobody need wait for it.
  void OnOut(const TaskId& task);
  virtual void OnClusterDraining() = 0;
  virtual void OnLost(const Member& member) = 0;
  virtual void OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event) = 0;
  // False: it launches no processes, so this one is not its own.
  virtual bool OnLaunchEvent(const Member&, const v1::LaunchEvent&) { return false; }
  // `driver`: the number it was started with; of an earlier one than the present it is old news.
  virtual void OnDriverExit(Incarnation driver, bool success, const std::string& how) = 0;
  // What its driver says; of an earlier one it is old news.
  virtual void OnDriverMessage(Incarnation driver, const v1::FromProgram& message) = 0;
  // The number of its present driver, which that one's calls must carry; 0: there is none.
  virtual Incarnation driver() const = 0;
  // As whose output what it writes is kept.
  virtual std::string driver_task() const = 0;

  // --- What those that were asked to end wait for.
  // Nothing of it would be lost if everything ended now, or nothing more can be done about it.
  virtual bool Settled() const = 0;
  virtual bool MayLeave(const Member& member) const = 0;
  // Time is up: what is not saved is lost, and an event says so.
  virtual void GiveUpCut(const std::string& why) = 0;
  // It has something on that parameter server that is of this view.
  virtual bool Uses(const TaskId& ps, ViewId view) const = 0;
  // It has an executor on that worker, or has asked for one.
  virtual bool Occupies(const TaskId& worker) const = 0;

  // See Story.
  void WhenWritten(Story::Done then) { story_.WhenWritten(std::move(then)); }

  // --- What people ask.
  void Stop(Millis grace);
  // As far as it is known here: without the events of a job that has ended.
  v1::Job Describe() const;
  // With all events, which the journal may have to be asked for. The oldest are without their log
  // lines where that is too much for an answer.
  void Describe(Then<v1::Job> then) const;
  // Without spec, events, variables, processes of a launch.
  v1::Job Summary() const;
  void Watch(std::uint64_t version, Millis limit, Then<v1::Job> then);
  const std::vector<v1::CheckpointInfo>& checkpoints() const { return story_.checkpoints(); }
  std::string CheckpointRoot() const { return story_.CheckpointRoot(); }

  // --- For what is behind it alone.
  World& world() { return world_; }
  Story& story() { return story_; }
  // When the coordinator before this one was last alive, where that is known.
  std::optional<std::chrono::system_clock::time_point> away_since() const { return away_since_; }
  // "ps:1 (lost: its connection was reset) and a worker"; empty: nobody is missing.
  std::string MissingTasks() const;
  // It could not begin, or what had begun is void; it is tried again.
  void RetryAfter(Millis delay, const std::string& reason, const std::string& message);
  void Fail(const Status& status);
  // What was submitted is wrong. Before it has run that is a refusal, whoever found it.
  void Refuse(const Status& status);
  // `why`: the machine reason, where it is not the state's name.
  void End(v1::JobState state, const Status& error, const std::string& message,
           const std::string& why = "");

 protected:
  enum class Phase {
    kWaiting,   // for tasks, for its turn, or for a retry
    kChecking,  // workers look at the spec
    kBegun,     // what follows is its kind's
    kEnded,
  };

  Job(World& world, StoredJob stored);

  // --- What differs between kinds.
  // Those that it cannot begin without and that are not there, in words.
  virtual std::vector<std::string> Missing() const = 0;
  // They have not come for long. Not empty: from now on it makes do with those who are there.
  virtual std::string MakeDo() = 0;
  // What a worker does in the check, for people.
  virtual std::string Checking() const = 0;
  // What the check has found out goes into the row. An error refuses the job.
  virtual Status TakeCheck(const CheckOutcome& outcome) = 0;
  // Tasks are there, it has its turn, and its spec is good.
  virtual void Begin() = 0;
  // What has begun is void: no answer to it counts any more.
  virtual void Leave() = 0;
  // The end is on disk: lets go of tasks, folder and driver.
  virtual void LetGo() = 0;
  // Asked to stop, for the first time or again.
  virtual void BeginStop(Millis grace) = 0;
  // The job was submitted again: what was learned before says nothing about now. Answers what the
  // event says.
  virtual std::string Forget(bool anew) = 0;
  // After a restart of the coordinator: what was done since its last checkpoint may still be there,
  // so that it is worth going on, if only to stop.
  virtual bool MaySaveYet() const { return false; }
  // What becomes of it after a restart of the coordinator, for the event that tells of it; then it.
  virtual std::string AfterRestart() const = 0;
  virtual void GoOnAfterRestart() = 0;
  virtual void OnArrival(const Member& member, const Arrival& arrival) = 0;
  virtual void OnTaskDraining(const TaskId& task) = 0;
  virtual void OnTaskOut(const TaskId&) {}
  // The last of its progress; what the event of the end says beside the error's code.
  virtual Story::Fields CloseProgress() = 0;
  virtual void DescribeWorker(const TaskId& worker, v1::TaskState& state) const = 0;

  // --- What kinds use.
  // The one place that moves a waiting job on. Called after everything that may have changed that.
  void Advance();
  // What has begun is void.
  void Drop();
  // And it waits again.
  void WaitAgain();
  // It goes on with what a coordinator before this one has begun: its slot is its own.
  void KeepSlot() { admitted_ = true; }
  // It has begun and needs the cluster no more: another may have its slot.
  void GiveUpSlot();
  // Stopped before it has ended by itself for so long.
  void EndAfter(Millis grace, const std::string& message);
  // Wraps a function so that it runs only while the job lives and the generation is the same.
  template <class Function>
  auto Guard(Function function) {
    return [this, here = lifeline_.Watch(), generation = generation_,
            function = std::move(function)](auto&&... args) mutable {
      if (!here() || generation_ != generation) return;
      function(std::forward<decltype(args)>(args)...);
    };
  }

  World& world_;
  Story story_;
  Phase phase_ = Phase::kWaiting;
  Lifeline lifeline_;

 private:
  // What a job is that waits.
  v1::JobState WaitingState() const;
  void WatchTheWait();
  void BeginCheck();
  void OnChecked(const Result<CheckOutcome>& outcome);
  // The end is on disk, or could not be written.
  void Release();

  bool admitted_ = false;
  std::optional<std::chrono::system_clock::time_point> away_since_;
  TimePoint not_before_;
  std::optional<TimePoint> waiting_since_;
  bool wait_told_ = false;
  // Why the check could not be made when that was told last.
  StatusCode check_trouble_ = StatusCode::kOk;
  Scheduler::TimerId stop_timer_ = 0;
  // It has ended, and Release() is still to come.
  bool releasing_ = false;
  // Raised with each change of phase: timers and answers of an earlier one do nothing.
  std::uint64_t generation_ = 0;
};

// Asks a parameter server to let go of what it holds of this view of a job; a later one stays.
v1::Command DropCommand(const std::string& job_id, Epoch epoch, ViewId view);

}  // namespace muster::coordinator
