// One job, from its submission to its end: waits for its tasks and its turn, has its spec checked,
// opens views, keeps its driver alive, and tells the story as events.
//
// A job has two lifetimes. This class is the long one: its row, admission, driver, stop and end.
// The short one is a View (view.h): variables, executors and closures between two returns to a
// checkpoint; dropped whole when a parameter server or the coordinator was lost. What differs
// between kinds of jobs is in Kind (kind.h). README.md draws the phases.
//
// It never waits and touches no socket, file or clock of its own: it is told what happened and
// answers with commands, rows and timers through World.
//
// Invariant: there is at most one view; what an older one still sends is dropped (by view here, by
// view and epoch at the parameter servers).
// Threading: not thread-safe; the coordinator's strand. Lifetime: the World outlives it.
//
// The class stands in three files: job.cc (waiting, views, the end), job_driver.cc (what its driver
// asks), job_watch.cc (the driver's process).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/kind.h"
#include "coordinator/story.h"
#include "coordinator/view.h"
#include "coordinator/world.h"
#include "muster/v1/driver.pb.h"

namespace muster::coordinator {

class Job {
 public:
  template <class Reply>
  using Then = std::function<void(Result<Reply>)>;

  // One that has just been submitted (its row is written already), or a loaded one.
  Job(World& world, StoredJob stored);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& id() const { return story_.id(); }
  const v1::JobRecord& record() const { return story_.record(); }
  bool ended() const { return phase_ == Phase::kEnded; }
  // Nobody waits for an answer.
  bool unwatched() const { return story_.parked().empty(); }
  bool admitted() const { return admitted_; }
  // Nothing but a slot is missing for it to begin. Who waits for tasks needs none.
  bool WantsSlot() const;
  // It may use the cluster now (not too many jobs run). Before: WAITING_FOR_SLOT.
  void Admit();
  // It may not, yet: its state says what it waits for.
  void AwaitTurn() { Advance(); }
  // The coordinator has been restarted: an unfinished job goes back to its last checkpoint.
  void NoteRestart(const Predecessor& before);
  // The coordinator stood still for so long, and heard nobody.
  void NoteStall(Millis slept);
  // A job that has ended goes on from its newest checkpoint, or begins anew at step 0.
  void Resume(bool anew);

  // --- What happens to its tasks.
  void OnUp(const Member& member, const Arrival& arrival);
  void OnDraining(const Member& member);
  void OnClusterDraining();
  void OnLost(const Member& member);
  void OnClosureResult(const Member& member, const v1::ClosureResult& result);
  void OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event);
  // `driver`: the number it was started with; of an earlier one than the present it is old news.
  void OnDriverExit(std::uint64_t driver, bool success, const std::string& how);

  // --- What those that were asked to end wait for.
  // Nothing of it would be lost if everything ended now, or nothing more can be done about it.
  bool Settled() const { return !view_ || view_->Settled(); }
  bool MayLeave(const Member& member) const { return !view_ || view_->MayLeave(member); }
  // Time is up: what is not saved is lost, and an event says so.
  void GiveUpCut(const std::string& why);

  // --- What its driver asks; errors are those of driver.proto.
  // The number that its calls must carry; 0: there is none.
  std::uint64_t driver() const { return driver_.number; }
  void OpenJob(const v1::OpenJobRequest& request, Then<v1::OpenJobReply> then);
  void Schedule(const v1::ScheduleRequest& request, Then<v1::ScheduleReply> then);
  void Join(const v1::JoinRequest& request, Then<v1::JoinReply> then);
  Result<v1::FetchReply> Fetch(const v1::FetchRequest& request);
  void SaveCheckpoint(const v1::SaveCheckpointRequest& request, Then<v1::SaveCheckpointReply> then);
  Result<v1::ReportProgressReply> ReportProgress(const v1::ReportProgressRequest& request);
  // Answers OK when the end is on disk.
  void FinishJob(const v1::FinishJobRequest& request, Story::Done then);

  // See Story.
  void WhenWritten(Story::Done then) { story_.WhenWritten(std::move(then)); }
  // The journal's disk has not answered for so long.
  void NoteSlowJournal(Millis waited, std::size_t rows);

  // --- What people ask.
  void Stop(Millis grace);
  // As far as it is known here: without the events of a job that has ended.
  v1::Job Describe() const;
  // With all events, which the journal may have to be asked for.
  void Describe(Then<v1::Job> then) const;
  // Without spec, events, variables.
  v1::Job Summary() const;
  void Watch(std::uint64_t version, Millis limit, Then<v1::Job> then);
  const std::vector<v1::CheckpointInfo>& checkpoints() const { return story_.checkpoints(); }
  std::string CheckpointRoot() const { return story_.CheckpointRoot(); }
  // Its current view has shards of this view on that parameter server.
  bool Uses(const TaskId& ps, std::uint64_t view) const;

  // --- For its View and Kind alone. What ends the view returns to it once more: a view that was
  // dropped does nothing.
  World& world() { return world_; }
  Story& story() { return story_; }
  Lasting& lasting() { return lasting_; }
  // "ps:1 (lost: its connection was reset) and a worker"; empty: nobody is missing.
  std::string MissingTasks() const;
  // The first executor is ready.
  void OnViewOpen();
  // A checkpoint was refused: the one before it, in another view.
  void BeginView();
  // The view could not begin; it is tried again.
  void RetryAfter(Millis delay, const std::string& reason, const std::string& message);
  // False: some were lost while the view looked for a checkpoint, which has ended it.
  bool TasksAreThere();
  // Nothing of the view counts any more; the job goes back to a checkpoint.
  void EndView(const std::string& reason, const std::string& message);
  void Fail(const Status& status);
  // What was submitted is wrong. Before the first step that is a refusal, whoever found it.
  void Refuse(const Status& status);
  // `why`: the machine reason, where it is not the state's name.
  void End(v1::JobState state, const Status& error, const std::string& message,
           const std::string& why = "");

 private:
  enum class Phase {
    kWaiting,   // for tasks, for its turn, or for a retry
    kChecking,  // a worker looks at the spec
    kInView,    // and its phase is the view's
    kEnded,
  };
  // The process that drives the job. The number that its calls carry is never used again: one that
  // was given up and wakes is not obeyed.
  struct Driver {
    std::uint64_t number = 0;
    int pid = 0;
    bool running = false;
    bool finished = false;
    std::uint64_t settled_before = 0;
    // Its calls that wait for us, and whether one came since the last look.
    int calls = 0;
    bool heard = false;
    int silent_looks = 0;
    TimePoint heard_at;
  };

  // job.cc
  void Advance();
  void WatchTheWait();
  void BeginCheck();
  void OnChecked(const Result<CheckOutcome>& outcome);
  void DropView();
  // The end is on disk, or could not be written: lets go of tasks, folder and driver.
  void Release();
  void ReleaseTasks();

  // job_watch.cc
  void StartDriver();
  void WatchDriver();
  // It is gone, or given up: another takes its place, unless too many did nothing.
  void LoseDriver(const std::string& reason, const std::string& what, Story::Fields fields);
  // The new one has opened the job.
  void NoteDriverBack();

  // job_driver.cc
  // `then`, counted as a call that the driver waits in.
  template <class Reply>
  Then<Reply> Heard(Then<Reply> then);
  Status CheckView(std::uint64_t view) const;
  // Does the call come from the present driver, in the present view?
  Status CheckCall(std::uint64_t view, std::uint64_t driver) const;
  std::string Unsaved() const;

  World& world_;
  Story story_;
  Lasting lasting_;
  const std::unique_ptr<Kind> kind_;
  std::unique_ptr<View> view_;

  Phase phase_ = Phase::kWaiting;
  bool admitted_ = false;
  TimePoint not_before_;
  std::optional<TimePoint> waiting_since_;
  bool wait_told_ = false;
  // Why the check could not be made when that was told last.
  StatusCode check_trouble_ = StatusCode::kOk;

  Driver driver_;
  std::uint32_t drivers_started_ = 0;
  int driver_failures_ = 0;
  std::optional<TimePoint> driver_lost_at_;
  Scheduler::TimerId stop_timer_ = 0;
  // It has ended, and Release() is still to come.
  bool releasing_ = false;

  // Raised with each change of phase: timers and answers of an earlier one do nothing.
  std::uint64_t generation_ = 0;
  // They hold this weakly: they do nothing once the job is gone either.
  std::shared_ptr<Job*> self_ = std::make_shared<Job*>(this);
  // Wraps a function so that it runs only while the job lives and the generation is the same.
  template <class Function>
  auto Guard(Function function) {
    return [this, weak = std::weak_ptr<Job*>(self_), generation = generation_,
            function = std::move(function)](auto&&... args) mutable {
      if (weak.expired() || generation_ != generation) return;
      function(std::forward<decltype(args)>(args)...);
    };
  }
};

// Asks a parameter server to let go of what it holds of this view of a job; a later one stays.
v1::Command DropCommand(const std::string& job_id, Epoch epoch, std::uint64_t view);

}  // namespace muster::coordinator
