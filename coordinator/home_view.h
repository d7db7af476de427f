// Jobs without parameter servers (docs/decisions/0002): one worker's executor, the home, holds the
// variables and runs the closures in order. They end with it: so does the view.
//
// Threading and lifetimes: see Kind and View.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/kind.h"
#include "coordinator/view.h"

namespace muster::coordinator {

class HomeKind : public Kind {
 public:
  HomeKind(const World& world, const Story& story) : world_(world), story_(story) {}
  // Any worker will do, but for a view that is to be adopted: that one's home.
  std::vector<std::string> Missing() const override;
  bool MakeDo() override;
  void Reset() override {
    crashes_ = own_crashes_ = 0;
    home_given_up_ = false;
  }
  std::unique_ptr<View> NewView(ModelJob& job) override;

  // The home's executor has ended with this closure. Why the job is to be given up, if it is: going
  // back to the same checkpoint leads to the same closure, and one that ends its executor every
  // time would do so for ever.
  std::optional<std::string> BlameFor(const ClosureKey& closure, bool in_flight,
                                      v1::ExecutorVerdict::Cause cause, bool worker_lost,
                                      const std::string& what);

 private:
  const World& world_;
  const Story& story_;
  // It did not come back.
  bool home_given_up_ = false;
  // The closure that ended the home's executor last, how often in a row, and how often by its own
  // doing.
  ClosureKey crashed_;
  int crashes_ = 0;
  int own_crashes_ = 0;
};

class HomeView : public View {
 public:
  HomeView(ModelJob& job, HomeKind& kind) : View(job), kind_(kind) {}

 protected:
  std::vector<v1::PsAddress> Servers() const override { return {}; }
  void MakeVariables(const std::string& restored_from) override;
  void AskHolders() override;
  bool OneWorker() const override { return true; }
  std::vector<TaskId> Holders() const override;
  std::string WhereVariablesLive() const override;
  bool NeedsDrainingTask() const override { return home_ && IsDraining(*home_); }
  bool Needs(const TaskId& task) const override { return home_ == task; }
  void StartExecutors() override;
  void FillStart(const TaskId& worker, v1::StartExecutor& start) override;
  void OnServerUp(const Member&) override {}
  void OnWorkerLost(const Member& worker) override;
  void OnServerLost(const Member&) override {}
  bool RefusesCheckpoint(const Status& answer) override;
  bool OnLeftOut(const TaskId& worker, const Status& why) override;
  bool OnOtherProcess(const TaskId& worker, const v1::ExecutorEvent& event) override;
  std::string Consequence(const std::vector<ClosureKey>& had) const override;
  bool OnExecutorEnd(const TaskId& worker, const ExecutorEnd& end) override;
  void RenewExecutor(const Member& worker, const std::string& what) override;
  // It is written with the plan: the next coordinator must know whom to ask.
  void SetHome(const TaskId& worker);
  // The home, or its executor, is gone, and the variables with it.
  void OnHomeGone(const ExecutorEnd& end);

  HomeKind& kind_;
  std::optional<TaskId> home_;
  std::uint32_t home_pid_ = 0;  // of the executor that has the variables; 0: none yet
};

}  // namespace muster::coordinator
