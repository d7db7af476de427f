// One job, from its submission to its end: waits for its tasks, has its spec checked, makes its
// variables and executors (a "view"), hands out its closures, goes back to a checkpoint when a
// parameter server or the coordinator was lost, and tells the story as events.
//
// It never waits and touches no socket, file or clock of its own: it is told what happened and
// answers with commands, rows and timers through World.
//
// Invariant: one view is open at a time; what an older one still sends is dropped (by view here, by
// view and epoch at the parameter servers).
// Threading: not thread-safe; the coordinator's strand. Lifetime: the World outlives it.
//
// A job whose strategy needs no parameter servers has its variables in one worker's executor (its
// home). They end with it: then the view ends, as with a lost parameter server.
//
// The class stands in ten files: job.cc (states and views), job_folder.cc (its checkpoints when a
// view begins), job_tasks.cc (workers, parameter servers, closures), job_executors.cc (what workers
// start), job_home.cc (jobs without parameter servers), job_driver.cc (what its driver asks),
// job_watch.cc (the driver's process), job_drain.cc (the cluster is asked to end),
// job_buffers.cc (what an archive's module holds beside its variables), job_story.cc (rows, events,
// describe).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/dispatcher.h"
#include "coordinator/job_parts.h"
#include "coordinator/parked_calls.h"
#include "coordinator/world.h"
#include "muster/v1/driver.pb.h"
#include "muster/v1/journal.pb.h"

namespace muster::coordinator {

// "RUNNING", as people read it.
std::string StateName(v1::JobState state);

class Job : private JobParts {
 public:
  template <class Reply>
  using Then = std::function<void(Result<Reply>)>;

  // Of a job that has just been submitted (its row is written already), or of a loaded one.
  Job(World& world, StoredJob stored);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& id() const { return record_.job().id(); }
  const v1::JobRecord& record() const { return record_; }
  bool ended() const { return phase_ == Phase::kEnded; }
  // Nobody waits for an answer.
  bool unwatched() const { return parked_.empty(); }
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
  bool Settled() const;
  bool MayLeave(const Member& member) const;
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
  Status FinishJob(const v1::FinishJobRequest& request);

  // kUnavailable: what was changed last is not in the database yet. It is tried until it is; a
  // coordinator that is restarted before that knows nothing of it.
  Status Written() const;

  // --- What people ask.
  void Stop(Millis grace);
  v1::Job Describe() const;
  // Without spec, events, variables.
  v1::Job Summary() const;
  void Watch(std::uint64_t version, Millis limit, Then<v1::Job> then);
  const std::vector<v1::CheckpointInfo>& checkpoints() const { return checkpoints_; }
  std::string CheckpointRoot() const;
  // Its current view has shards of this view on that parameter server.
  bool Uses(const TaskId& ps, std::uint64_t view) const;

 private:
  enum class Phase {
    kWaiting,   // for tasks, for its turn, or for a retry
    kChecking,  // a worker looks at the spec
    kFinding,   // the newest good checkpoint is looked for
    kCreating,  // parameter servers make the variables
    kStarting,  // workers start executors
    kOpen,      // closures run
    kEnded,
  };
  struct Save;

  // job.cc
  void Advance();
  void RetryAfter(Millis delay, const std::string& reason, const std::string& message);
  std::string MissingTasks() const;
  std::set<int> RequiredPs() const;
  bool SpecNamesPs() const;
  void WatchTheWait();
  void BeginCheck();
  void BeginView();
  void CreateVariables(const Checkpoints::Found& found);
  void OnVariablesCreated(const Status& status, const std::string& restored_from);
  void OpenView();
  void EndView(const std::string& reason, const std::string& message);
  void Fail(const Status& status);
  // What was submitted is wrong. Before the first step that is a refusal, whoever found it.
  void Refuse(const Status& status);
  // `why`: the machine reason, where it is not the state's name.
  void End(v1::JobState state, const Status& error, const std::string& message,
           const std::string& why = "");
  void ReleaseTasks();

  // job_watch.cc
  void StartDriver();
  void WatchDriver();
  // It is gone, or given up: another takes its place, unless too many did nothing.
  void LoseDriver(const std::string& reason, const std::string& what,
                  std::vector<std::pair<std::string, std::string>> fields);
  // The new one has opened the job.
  void NoteDriverBack();
  // `then`, counted as a call that the driver waits in.
  template <class Reply>
  Then<Reply> Heard(Then<Reply> then);

  // job_folder.cc
  // Says so when it does not answer.
  void WatchTheFolder();
  void SetCheckpointsAside();
  void FindCheckpoint();
  void OnCheckpointFound(Result<Checkpoints::Found> found);
  // The folder of checkpoints, or what is in it, cannot be read now. Said once for each cause.
  void WaitForCheckpoints(const Status& why);

  // job_executors.cc
  void StartExecutor(const Member& member);
  void StartExecutors();
  void StopExecutor(const Member& member);
  void OnExecutorAnswer(const TaskId& task, SessionId session, const Status& status);
  void OnExecutorReady(const TaskId& task);
  void OnExecutorGone(const Member& member, const v1::ExecutorEvent& event);
  void RestartExecutorLater(const TaskId& task, int crashes);
  // This worker cannot start an executor: others go on, it is asked again later.
  void LeaveOut(const TaskId& task, const Status& why);
  // What the data files must be there.
  v1::DataFiles DataOn(const std::string& host) const;
  bool IsPausing(const TaskId& worker) const;
  // Every worker that is there says the user's error.
  bool AllRefuse() const;
  // Each worker that is there, with its reason; empty: one of them has none.
  std::string UnfitWorkers() const;
  // Fails the job with the closure, the records that it has and how it ended its executors.
  void GiveUp(const Dispatcher::Verdict& verdict, const TaskId& task,
              const std::vector<std::string>& lines);
  bool NeedsAssign() const;

  // job_tasks.cc
  void Requeued(const TaskId& from, const std::vector<ClosureKey>& closures);
  void SendClosure(const TaskId& task, const v1::ClosureAssignment& assignment);
  void Pump();
  // The worker hands a closure back: a peer is out of its reach.
  void OnClosureReturned(const Member& member, const v1::ClosureResult& result);
  void RefreshReason();

  // job_drain.cc
  // A cut without the driver, because the cluster or a task that the job cannot do without was
  // asked to end: nothing new is given out, and when nothing is in flight a checkpoint is saved.
  enum class Cut { kNone, kWanted, kSettled };
  bool Leaving() const;
  void UpdateCut();
  void TryCut();
  void SettleCut();

  // job_home.cc
  bool HasHome() const;
  void StartHome();
  // It, or its executor, is gone, and the variables with it. `requeued`: what it had in flight.
  void OnHomeGone(const std::string& reason, const std::string& what,
                  const std::vector<ClosureKey>& requeued, Dispatcher::Cause cause);
  // Has another process of the home taken the place of the one with the variables?
  bool HomeReplaced(const TaskId& task, const v1::ExecutorEvent& event);
  // "2 devices (mirrored) of worker:0", or "2 parameter servers".
  std::string WhereVariablesLive() const;

  // job_buffers.cc
  bool HasArchive() const { return !record_.job().spec().model().archive_sha256().empty(); }
  bool WorkerLocal() const;
  // The worker whose buffers count: the lowest index whose executor is ready and has made a step,
  // else the lowest that is ready.
  const TaskId* BuffersOf() const;
  using ThenValues = std::function<void(Result<v1::ModelValues>)>;
  void FetchValues(bool frozen, ThenValues then);
  void FetchPiece(const TaskId& task, bool frozen, std::shared_ptr<std::string> got,
                  ThenValues then);
  void TakeBuffers(const v1::ModelValues& values);
  // They are those of this cut. Else they are fetched, and parked calls asked again.
  bool BuffersReady();
  void GiveBuffers(const TaskId& task, v1::ClosureAssignment& assignment);
  void SaveValues(std::shared_ptr<Save> save);

  // job_driver.cc
  Status CheckView(std::uint64_t view) const;
  // Does the call come from the present driver, in the present view?
  Status CheckCall(std::uint64_t view, std::uint64_t driver) const;
  // An error of a closure, once, when nothing is in flight any more.
  std::optional<Status> RaiseError();
  std::uint64_t StepsDone() const;
  v1::OpenJobReply Opened() const;
  void NoteScheduled(const v1::Closure& closure);
  void BeginSave(std::uint64_t step, Then<v1::SaveCheckpointReply> then);
  void SaveOnServers(std::shared_ptr<Save> save);
  void OnShardsSaved(std::shared_ptr<Save> save);
  void OnCommitted(std::shared_ptr<Save> save, Result<Checkpoints::Committed> committed);
  void AnswerSave(Save& save, const Result<v1::SaveCheckpointReply>& reply);
  // `then`, guarded, not later than `limit`: kDeadlineExceeded names the folder, which counts as
  // silent until its answer does come.
  template <class Value, class Function>
  std::function<void(Result<Value>)> FromFolder(Millis limit, Function then);

  // job_story.cc
  using Fields = std::vector<std::pair<std::string, std::string>>;
  void Tell(const std::string& reason, const std::string& message, const TaskId* task = nullptr,
            const Fields& fields = {}, const std::vector<std::string>& lines = {});
  void SetState(v1::JobState state, const std::string& reason, const std::string& message);
  // The message has changed: readers that wait are asked again.
  void Touch();
  std::vector<v1::Event> Events() const;
  // The journal has all of them: nothing keeps them here.
  void DropEvents();
  // Writes the row. A failure is told once; it is tried again until it is written.
  Status Persist();
  void PersistLater();
  // An end counts when it is written: until then people see the state before it.
  void HideUnwrittenEnd(v1::Job& job) const;
  void MarkRefused(const Checkpoints::Refusal& refusal);
  // "there is no checkpoint", or how many are damaged.
  std::string NoSoundCheckpoint() const;
  std::int64_t WallMs() const;

  World& world_;
  v1::JobRecord record_;
  // Of a job that has ended they are read from the journal when somebody asks.
  std::deque<v1::Event> events_;
  std::vector<v1::CheckpointInfo> checkpoints_;
  std::uint64_t last_event_ = 0;
  bool journal_failing_ = false;
  // The state before the end, while that is not written.
  std::optional<v1::JobState> unwritten_end_;
  bool events_unsaved_ = false;

  Phase phase_ = Phase::kWaiting;
  bool admitted_ = false;
  // Raised by whatever makes answers on their way meaningless.
  std::uint64_t generation_ = 0;
  TimePoint not_before_;
  std::optional<TimePoint> waiting_since_;
  bool wait_told_ = false;
  std::optional<std::uint64_t> restored_told_;  // the step, until a view is open
  bool replan_ = false;
  int without_room_ = 0;  // views in a row

  // Of the view.
  std::unique_ptr<Dispatcher> dispatcher_;
  std::map<TaskId, Executor> executors_;
  std::map<TaskId, std::uint64_t> closures_by_;  // over all views
  std::map<TaskId, Loss> missing_ps_;            // their process may come back
  std::optional<TaskId> assigner_;
  bool assigned_ = false;
  std::vector<Rerun> reruns_;
  std::map<TaskId, Unfit> unfit_;
  // A closure is being given up: nothing more is handed out.
  bool judging_ = false;
  std::optional<TaskId> home_;
  std::uint32_t home_pid_ = 0;  // of the executor that has the variables; 0: none yet
  // Over views: the closure that ended the home's executor last, how often in a row, and how often
  // by its own doing.
  ClosureKey crashed_;
  int crashes_ = 0;
  int own_crashes_ = 0;
  TimePoint unreachable_told_;
  std::set<std::string> refused_;
  std::string restored_from_;
  // buffers: worker_local: the newest known, in which version of this view, and of which step.
  v1::TensorSet buffers_;
  std::uint64_t buffers_version_ = 0;
  std::optional<std::uint64_t> buffers_step_;
  bool fetching_buffers_ = false;
  TaskId buffers_of_;

  Position position_;
  Driver driver_;
  std::uint32_t drivers_started_ = 0;
  int driver_failures_ = 0;
  std::optional<TimePoint> driver_lost_at_;
  // Closures and checkpoints that were done, over all views: a driver that adds none got nowhere.
  std::uint64_t settled_ = 0;
  std::shared_ptr<Save> saving_;
  Cut cut_ = Cut::kNone;
  // Why the newest checkpoint that was tried could not be saved; empty when it was.
  std::string save_failure_;
  bool folder_silent_ = false;
  // What WaitForCheckpoints() has told last.
  std::string unreadable_told_;

  Scheduler::TimerId stop_timer_ = 0;
  ParkedCalls parked_;
  // Timers and answers hold this weakly: they do nothing once the job is gone.
  std::shared_ptr<Job*> self_;
  // Wraps a function so that it runs only while the job lives and the generation is the same.
  template <class Function>
  auto Guard(Function function) {
    return [weak = std::weak_ptr<Job*>(self_), generation = generation_,
            function = std::move(function)](auto&&... args) mutable {
      const auto self = weak.lock();
      if (self == nullptr || (*self)->generation_ != generation) return;
      function(std::forward<decltype(args)>(args)...);
    };
  }
};

}  // namespace muster::coordinator
