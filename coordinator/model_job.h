// A job that trains a model: opens views, keeps its driver (muster-trainer) alive, and answers it.
//
// It has two lifetimes. This class is the long one. The short one is a View (view.h): variables,
// executors and a driver between two returns to a checkpoint; dropped whole when a parameter server
// or the coordinator was lost. Where variables live is in Kind (kind.h).
//
// Invariant: there is at most one view; what an older one still sends is dropped (by view here, by
// view and epoch at the parameter servers).
// Threading and lifetime: see Job.
//
// The class stands in three files: model_job.cc (views, stop, the end), model_driver.cc (what its
// driver says and asks), model_watch.cc (the driver's process).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/evaluations.h"
#include "coordinator/job.h"
#include "coordinator/kind.h"
#include "coordinator/view.h"
#include "muster/v1/driver.pb.h"

namespace muster::coordinator {

class ModelJob final : public Job {
 public:
  ModelJob(World& world, StoredJob stored);
  ~ModelJob() override;

  ModelJob* AsModel() override { return this; }

  // --- See Job.
  void OnClusterDraining() override;
  void OnLost(const Member& member) override;
  void OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event) override;
  void OnDriverExit(Incarnation driver, bool success, const std::string& how) override;
  void OnDriverMessage(Incarnation driver, const v1::FromProgram& message) override;
  Incarnation driver() const override { return driver_.number; }
  std::string driver_task() const override { return "trainer"; }
  // The step of its checkpoint that is on its way.
  std::optional<std::uint64_t> SavingStep() const {
    return view_ ? view_->SavingStep() : std::nullopt;
  }
  bool Settled() const override { return !view_ || view_->Settled(); }
  bool MayLeave(const Member& member) const override {
    return evaluations_.MayLeave(member) && (!view_ || view_->MayLeave(member));
  }
  void GiveUpCut(const std::string& why) override;
  bool Uses(const TaskId& ps, ViewId view) const override;
  bool Occupies(const TaskId& worker) const override { return view_ && view_->HasExecutor(worker); }

  // --- What its driver asks; errors are those of driver.proto.
  void OpenJob(const v1::OpenJobRequest& request, Then<v1::OpenJobReply> then);
  void BeginEvaluation(const v1::BeginEvaluationRequest& request,
                       Then<v1::BeginEvaluationReply> then);
  void SaveCheckpoint(const v1::SaveCheckpointRequest& request, Then<v1::SaveCheckpointReply> then);
  Result<v1::ReportProgressReply> ReportProgress(const v1::ReportProgressRequest& request);
  // Answers OK when the end is on disk.
  void FinishJob(const v1::FinishJobRequest& request, Story::Done then);

  // --- For its View and Kind alone. What ends the view returns to it once more: a view that was
  // dropped does nothing.
  Lasting& lasting() { return lasting_; }
  // The first executor is ready.
  void OnViewOpen();
  void OnCheckpointSaved() { evaluations_.Advance(); }
  // Those of the run before it are out of the way.
  void OnCheckpointsSetAside() { evaluations_.Advance(); }
  // A checkpoint was refused: the one before it, in another view.
  void BeginView();
  // False: some were lost while the view looked for a checkpoint, which has ended it.
  bool TasksAreThere();
  // Whether the next view is to be the one that the coordinator before this one has begun.
  bool adopts() const { return kind_->adopts(); }
  void EndAdoption() { kind_->set_adopts(false); }
  // Nothing of the view counts any more; the job goes back to a checkpoint.
  void EndView(const std::string& reason, const std::string& message);
  bool HasDriver() const { return driver_.running; }
  // To the driver, if there is one.
  void Tell(const v1::ToProgram& message);

 private:
  // The process that drives the job. The number that its calls carry is never used again: one that
  // was given up and wakes is not obeyed.
  struct Driver {
    Incarnation number;
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

  // model_job.cc
  std::vector<std::string> Missing() const override { return kind_->Missing(); }
  std::string MakeDo() override;
  std::string Checking() const override { return "a worker compiles the model and opens the data"; }
  Status TakeCheck(const CheckOutcome& outcome) override;
  void Begin() override;
  void Leave() override;
  void LetGo() override;
  void BeginStop(Millis grace) override;
  std::string Forget(bool anew) override;
  bool MaySaveYet() const override { return kind_->adopts(); }
  std::string AfterRestart() const override;
  void GoOnAfterRestart() override;
  void OnArrival(const Member& member, const Arrival& arrival) override;
  void OnTaskDraining(const TaskId& task) override;
  void OnTaskOut(const TaskId& task) override;
  Story::Fields CloseProgress() override;
  void DescribeWorker(const TaskId& worker, v1::TaskState& state) const override;
  void ReleaseTasks();

  // model_watch.cc
  void StartDriver();
  // Its view has ended, and it with it.
  void EndDriver();
  void WatchDriver();
  // It is gone, or given up: another takes its place, unless too many did nothing.
  void LoseDriver(const std::string& reason, const std::string& what, Story::Fields fields);
  // The new one has opened the job.
  void NoteDriverBack();

  // model_driver.cc
  // `then`, counted as a call that the driver waits in.
  template <class Value>
  std::function<void(Value)> Heard(std::function<void(Value)> then);
  Status CheckView(ViewId view) const;
  // An error unless the call comes from the present driver, in the present view.
  Status CheckCall(ViewId view, Incarnation driver) const;
  void Finish(const v1::FinishJobRequest& request, Story::Done then);
  // All steps are done and saved, and evaluator:0 has checkpoints left: whoever holds variables,
  // the driver and the slot are let go, and the job ends when these are evaluated.
  void BeginEvaluating(const std::string& message, Story::Done then);
  void AwaitEvaluations();
  std::string Unsaved() const;

  Lasting lasting_;
  Evaluations evaluations_;
  const std::unique_ptr<Kind> kind_;
  std::unique_ptr<View> view_;
  Driver driver_;
  std::uint32_t drivers_started_ = 0;
  int driver_failures_ = 0;
  std::optional<TimePoint> driver_lost_at_;
};

}  // namespace muster::coordinator
