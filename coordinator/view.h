// One view of a job: what it has between two returns to a checkpoint. It looks for the newest good
// checkpoint, has the variables made, has executors started, and then tells the driver, which hands
// out closures, who is there and how fast it may go, saves checkpoints and answers it. When the
// variables are lost nothing of it counts any more: the job drops it whole and makes another.
//
// Where variables live, and so whose loss ends the view, differs between kinds: PsView and HomeView
// say it in the virtual functions.
//
// Calls of the job that end the view (ModelJob::EndView, RetryAfter, Fail, ...) come back into its
// functions; from then on it is kGone and its functions do nothing.
//
// Threading: not thread-safe; the coordinator's strand. Lifetime: the ModelJob outlives Leave();
// after that it touches it no more.
//
// The class stands in these files: view.cc (from its beginning until it is open), view_adoption.cc
// (a view of the coordinator before this one), view_folder.cc (the search for a checkpoint),
// view_executors.cc (what workers start, and who cannot), view_tasks.cc (tasks that come and go),
// view_driver.cc (what the driver is told, says and asks), view_saving.cc (its checkpoints),
// view_drain.cc (the cluster is asked to end), view_buffers.cc (what an archive's module holds
// beside its variables).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/lifeline.h"
#include "coordinator/adoption.h"
#include "coordinator/story.h"
#include "coordinator/view_parts.h"
#include "muster/v1/driver.pb.h"
#include "muster/v1/program.pb.h"

namespace muster::coordinator {

class ModelJob;

class View : protected ViewParts {
 public:
  template <class Reply>
  using Then = std::function<void(Result<Reply>)>;

  explicit View(ModelJob& job);
  virtual ~View();
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  void Begin();
  // It has ended. What is on its way to it does nothing when it comes.
  void Leave();
  // Closures run.
  bool open() const { return phase_ == Phase::kOpen; }
  // It has taken a number, made its variables, and starts executors, or is open.
  bool running() const { return phase_ == Phase::kStarting || open(); }

  // --- What happens to its tasks.
  void OnUp(const Member& member, const Arrival& arrival);
  void OnDraining(const TaskId& task);
  void OnOut(const TaskId& task);
  void OnLost(const Member& member);
  void OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event);
  bool HasExecutor(const TaskId& worker) const { return executors_.contains(worker); }
  // 0: it has none there.
  std::uint32_t ExecutorPid(const TaskId& worker) const;
  // A holder of variables is away, and the view waits for it.
  bool waits_for_holders() const { return !missing_.empty(); }

  // --- The cluster, or a task of its own, was asked to end.
  // The step that is being saved.
  std::optional<std::uint64_t> SavingStep() const;
  bool Settled() const { return !open() || cut_ == Cut::kSettled; }
  bool MayLeave(const Member& member) const { return Settled() || !Needs(member.task); }
  // A checkpoint of everything that was done is saved, and nothing more is given out.
  bool cut_is_settled() const { return cut_ == Cut::kSettled; }
  void UpdateCut();
  void GiveUpCut(const std::string& why);
  void SettleCut();

  // --- Its driver.
  // One begins: it is told who is there and how fast it may go.
  void OnDriverBegins();
  // It has ended: what it owes an answer to is decided without.
  void OnDriverGone();
  void OnReport(const v1::ModelReport& report);
  void OnVerdictAnswer(const v1::VerdictAnswer& answer);
  // --- What it asks, while the view is open.
  v1::OpenJobReply Opened();
  // Nothing: not yet, ask again later; with `last` there is an answer.
  std::optional<Result<v1::BeginEvaluationReply>> BeginEvaluation(bool last);
  void SaveCheckpoint(std::uint64_t step, Then<v1::SaveCheckpointReply> then);
  // Those who wait for a checkpoint that will not come are told so.
  void RefuseSaves(const Status& why);
  void NoteEvaluated(std::uint64_t step) { position_.evaluated = step; }
  // A closure is being given up, or may be: the job fails with that, whatever the driver says.
  bool judging() const { return judging_ || !asked_.empty(); }
  bool giving_up() const { return judging_; }
  std::uint64_t StepsDone() const { return position_.done; }
  // Tells the driver how fast it may go, when that has changed.
  void SetPace();
  // What the open job waits for, if it does.
  void RefreshReason();

  // Asks an executor of this job to end, whichever view it is of.
  static void StopExecutor(World& world, const Story& story, const Member& member);

 protected:
  enum class Phase {
    kAdopting,  // those who hold the variables of a view of an earlier epoch are asked for it
    kFinding,   // the newest good checkpoint is looked for
    kCreating,  // the variables are made
    kStarting,  // workers start executors
    kOpen,      // closures run
    kGone,
  };

  // --- What differs between kinds.
  // Who would hold the variables now.
  virtual std::vector<v1::PsAddress> Servers() const = 0;
  // Has them made, from the checkpoint in `restored_from` where there is one; OnVariablesMade().
  virtual void MakeVariables(const std::string& restored_from) = 0;
  // Asks all who hold the variables of the plan's view, which a coordinator before this one began,
  // to go on with it; OnHoldersAsked().
  virtual void AskHolders() = 0;
  // They may not be whole before the first closure is done.
  virtual bool MustBeMadeAnew() const { return false; }
  // One worker has all closures, in order.
  virtual bool OneWorker() const = 0;
  // Those who hold variables and save them.
  virtual std::vector<TaskId> Holders() const = 0;
  // "2 devices (mirrored) of worker:0", or "2 parameter servers".
  virtual std::string WhereVariablesLive() const = 0;
  // One of those that it cannot do without was asked to end.
  virtual bool NeedsDrainingTask() const = 0;
  virtual bool Needs(const TaskId& task) const = 0;
  // On each worker that should have one and has none.
  virtual void StartExecutors() = 0;
  // Whom it asks before others, where there are more than it takes: who had one in this view.
  virtual bool ComesFirst(const TaskId& worker) const { return numbers_.contains(worker); }
  virtual void FillStart(const TaskId& worker, v1::StartExecutor& start) = 0;
  // Its first executor is ready.
  virtual void OnOpen() {}
  virtual void OnServerUp(const Member& server) = 0;
  virtual void OnWorkerLost(const Member& worker) = 0;
  virtual void OnServerLost(const Member& server) = 0;
  // One that is lost was taken out by an operator: it will not come back.
  virtual void OnServerOut(const TaskId&) {}
  virtual void OnReady(const TaskId& /*worker*/) {}
  // It does not start any more: refused, left out, or ended.
  virtual void OnStartEnded(const TaskId& /*worker*/) {}
  // Whether the driver gives closures to this one, whose executor is ready.
  virtual bool TakesClosures(const TaskId& /*worker*/) const { return true; }
  // A closure has come back from it: a peer is out of its reach.
  virtual void OnHandedBack(const TaskId& /*worker*/, const std::string& /*why*/) {}
  // What an open view waits for before the driver can give closures to anybody; empty: nothing.
  virtual std::string WaitsFor() const { return {}; }
  // True: not now; StartExecutors() thinks of it again.
  virtual bool MustWait(const TaskId& /*worker*/) const { return false; }
  // True: what the executor answered has ended the view.
  virtual bool RefusesCheckpoint(const Status& /*answer*/) { return false; }
  // True: it has ended the view.
  virtual bool OnLeftOut(const TaskId& worker, const Status& why) = 0;
  // The process with the variables is another one now. True: that has ended the view.
  virtual bool OnOtherProcess(const TaskId& worker, const v1::ExecutorEvent& event) = 0;
  // What follows from an executor's end, for its event.
  virtual std::string Consequence(const std::vector<ClosureKey>& had) const = 0;
  using Cause = v1::ExecutorVerdict::Cause;
  struct ExecutorEnd {
    std::string reason, what;
    bool was_ready = false;
    // What it had then.
    std::vector<ClosureKey> had;
    Cause cause = v1::ExecutorVerdict::CAUSE_UNSPECIFIED;
  };
  // True: it has ended the view.
  virtual bool OnExecutorEnd(const TaskId& worker, const ExecutorEnd& end) = 0;
  // It hands everything back, for whatever reason: another executor might not.
  virtual void RenewExecutor(const Member& worker, const std::string& what) = 0;

  // --- What kinds use.
  void OnVariablesMade(const Status& status, const std::string& restored_from);
  // kNotFound, kFailedPrecondition: variables are gone. Transient: it is tried again.
  void OnHoldersAsked(const Status& status, const std::vector<v1::AdoptReport>& reports);
  bool adopted() const { return adopted_.has_value(); }
  bool IsDraining(const TaskId& task) const;
  // On free workers, until so many have one; 0: on all.
  void StartExecutorsOn(std::size_t most);
  // It was asked for one, and is the process that was.
  bool HasItNow(const Member& worker) const;
  void StartExecutor(const Member& member);
  void TakeExecutor(const TaskId& worker, const v1::AdoptReport& report);
  void RestartExecutorLater(const TaskId& task, int crashes);
  void GiveUp(const Verdict& verdict, const TaskId& task, const std::vector<std::string>& lines);
  // An executor has ended, or its worker has. `then` is told what it had, and what is given up for
  // it; at once when there is no driver to say so.
  struct Had {
    std::vector<ClosureKey> closures;
    std::optional<Verdict> given_up;
  };
  struct Ended {
    TaskId task;
    Incarnation number;
    Cause cause = v1::ExecutorVerdict::CAUSE_UNSPECIFIED;
    std::string how;
    std::vector<std::string> lines;
  };
  void AskWhatItHad(const Ended& ended, std::function<void(const Had&)> then);
  // The same of a worker that was lost with its executor, which it may bring back.
  void AskWhatLostHad(const Member& lost, std::function<void(const Had&)> then);
  // The driver is told who is there.
  void TellMembers();
  // What the event of a lost task says of it.
  static Story::Fields FieldsOf(const Member& lost);

  // Wraps a function so that it runs only while the view counts.
  template <class Function>
  auto Guard(Function function) {
    return lifeline_.Guard(std::move(function));
  }

  ModelJob& job_;
  World& world_;
  Story& story_;
  Lasting& lasting_;
  Phase phase_ = Phase::kFinding;
  std::map<TaskId, Executor> executors_;
  // The number of the executor that each worker was asked for last; one that has ended has none. A
  // worker that comes back, and is the same process, may have it still.
  std::map<TaskId, Incarnation> numbers_;
  // Holders of variables that are away; their processes may come back.
  std::map<TaskId, Loss> missing_;
  // The checkpoint that the variables come from; empty: none.
  std::string restored_from_;

 private:
  struct Save;

  // view.cc
  void CreateVariables(const Checkpoints::Found& found);
  void TellRestored(const Checkpoints::Found& found, bool again);
  void BeginExecutors();
  void Open();

  // view_adoption.cc
  void GoOn(const AppliedClosures& applied);
  void GiveUpAdoption(const std::string& why);
  void TellAdopted();

  // view_folder.cc
  // Says so when it does not answer.
  void WatchTheFolder();
  void SetCheckpointsAside();
  Checkpoints::Search NewestOfJob() const;
  void FindCheckpoint();
  void OnCheckpointFound(Result<Checkpoints::Found> found);
  void ListFound(const Checkpoints::Found& found);
  // The folder of checkpoints, or what is in it, cannot be read now. Said once for each cause.
  void WaitForCheckpoints(const Status& why);

  // view_executors.cc
  void OnExecutorAnswer(const TaskId& task, Incarnation number,
                        const Result<v1::CommandResult>& result);
  void OnExecutorReady(const TaskId& task, const v1::ExecutorEvent& event);
  void OnExecutorGone(const TaskId& task, const v1::ExecutorEvent& event);
  // This worker cannot start an executor: others go on, it is asked again later.
  void LeaveOut(const TaskId& task, const Status& why);
  void OnExecutorEnded(const TaskId& task, const v1::ExecutorEvent& event, bool was_ready,
                       const std::vector<std::string>& lines, const Had& had);

  // view_drain.cc
  // A cut without the driver, because the cluster or a task that the job cannot do without was
  // asked to end: nothing new is given out, and when nothing is in flight a checkpoint is saved.
  enum class Cut { kNone, kWanted, kSettled };
  bool Leaving() const;
  void TryCut();
  std::uint64_t SavedStep() const;

  // view_buffers.cc
  bool HasArchive() const { return !story_.spec().model().archive_sha256().empty(); }
  bool WorkerLocal() const;
  // Those that were saved last, for executors that start anew in an adopted view; then
  // AskHolders().
  void RecallBuffers();
  void OnRecalled(Result<Checkpoints::Found> found);
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
  // Those of the last cut, to evaluate with.
  void GiveBuffers(const TaskId& task);
  void SaveValues(std::shared_ptr<Save> save);

  // view_driver.cc
  void NoteWork(const v1::ExecutorWork& work);
  void OnNews(const v1::ClosureNews& news);
  // A worker has handed a closure back: a peer is out of its reach.
  void OnReturned(const v1::ClosureNews::Returned& returned);

  // view_saving.cc
  void BeginSave(std::uint64_t step, Then<v1::SaveCheckpointReply> then);
  void SaveOnHolders(std::shared_ptr<Save> save);
  void OnShardsSaved(std::shared_ptr<Save> save);
  void OnCommitted(std::shared_ptr<Save> save, Result<Checkpoints::Committed> committed);
  void AnswerSave(Save& save, const Result<v1::SaveCheckpointReply>& reply);
  // `then`, guarded, not later than `limit`: kDeadlineExceeded names the folder, which counts as
  // silent until its answer does come.
  template <class Value, class Function>
  std::function<void(Result<Value>)> FromFolder(Millis limit, Function then);

  // Set where the view goes on under a new coordinator.
  struct Adopted {
    std::uint64_t lost = 0;
    // Closures that had been begun and run again.
    std::size_t again = 0;
  };
  std::optional<Adopted> adopted_;
  // What the driver has said last of its executors' work, and how many runs were not the first.
  std::map<Incarnation, v1::ExecutorWork> work_;
  std::uint64_t reruns_ = 0;
  v1::ModelPace pace_;
  // The number of the pace whose drain the driver has reached.
  std::uint64_t drained_ = 0;
  std::uint64_t members_version_ = 0;
  // Verdicts that the driver owes an answer to.
  std::map<std::uint64_t, std::function<void(const Had&)>> asked_;
  std::uint64_t last_asked_ = 0;
  // Closures that were handed back and have not been done since: one that always is, while others
  // run, has a trouble that no waiting mends.
  struct Comeback {
    int times = 0;
    std::uint64_t settled_then = 0;
    TimePoint since;
  };
  static constexpr int kMostComebacks = 20;
  static constexpr std::uint64_t kManyOthers = 100;
  std::map<ClosureKey, Comeback> comebacks_;
  // A closure is being given up: nothing more is handed out.
  bool judging_ = false;
  TimePoint unreachable_told_;
  Position position_;
  std::shared_ptr<Save> saving_;
  Cut cut_ = Cut::kNone;
  // buffers: worker_local: the newest known, in which version, and of which step. Versions rise
  // over epochs: executors of an adopted view have those of the coordinator before this one.
  v1::TensorSet buffers_;
  std::uint32_t buffers_taken_ = 0;
  std::uint64_t buffers_version_ = 0;
  std::optional<std::uint64_t> buffers_step_;
  bool fetching_buffers_ = false;
  bool recalled_ = false;
  TaskId buffers_of_;

  // Ended when the view has.
  Lifeline lifeline_;
};

}  // namespace muster::coordinator
