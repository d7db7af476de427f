// A job that runs a user's program (docs/decisions/0006): its driver, one process on this host, and
// an executor on each worker that it is given.
//
// There is no view: executors are replaced one by one, and the driver, which hands its closures to
// them directly, is told who is there and how each of them ended. main() begins when the first
// executor is ready, so it never begins on a cluster that cannot run it. It ends with its exit
// code, and the job with it; under `restart: on_failure` it begins anew in another driver, which
// takes the executors over.
//
// Invariants: an executor's incarnation, and a driver's number, are of this job and never used
// again: their high half is the epoch, which is on disk before anything begins. What an older one
// still says is dropped.
// Threading and lifetime: see Job.
//
// The class stands in three files: program_job.cc (from the beginning to the end),
// program_workers.cc (which workers, and their executors), program_driver.cc (the process of
// main()).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/fitness.h"
#include "coordinator/job.h"

namespace muster::coordinator {

class ProgramJob final : public Job {
 public:
  ProgramJob(World& world, StoredJob stored) : Job(world, std::move(stored)) {}

  // --- See Job.
  void OnClusterDraining() override;
  void OnLost(const Member& member) override;
  void OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event) override;
  void OnDriverExit(Incarnation driver, bool success, const std::string& how) override;
  void OnDriverMessage(Incarnation driver, const v1::FromProgram& message) override;
  Incarnation driver() const override { return driver_.number; }
  std::string driver_task() const override { return "chief:0"; }
  bool Settled() const override;
  bool MayLeave(const Member& member) const override;
  void GiveUpCut(const std::string& why) override;
  bool Uses(const TaskId&, ViewId) const override { return !ended(); }
  bool Occupies(const TaskId& worker) const override { return executors_.contains(worker); }

 private:
  struct Executor {
    SessionId session;
    Incarnation incarnation;
    std::uint32_t pid = 0;
    bool ready = false;
    TimePoint ready_at;
    v1::DataEndpoint endpoint;
    // Ends in a row, for the pause before the next one.
    int crashes = 0;
    bool restart_planned = false;
  };
  struct Driver {
    Incarnation number;
    // That it is about to run is on its way to the disk.
    bool beginning = false;
    bool running = false;
    // It has said that main() begins.
    bool ready = false;
    int pid = 0;
    // The job has ended before it, and it is made to end.
    bool let_go = false;
    // The error that has left main(), or OK; nothing: it has not said.
    std::optional<Status> end;
    // The servers that it was told of last.
    std::set<TaskId> servers;
    // Servers that hold variables of it and are lost, and how.
    std::map<TaskId, std::string> away;
  };

  // program_job.cc
  std::vector<std::string> Missing() const override;
  std::string MakeDo() override { return {}; }
  std::string Checking() const override { return "a worker on each host looks at the program"; }
  Status TakeCheck(const CheckOutcome&) override { return Ok(); }
  void Begin() override;
  void Leave() override { open_ = false; }
  void LetGo() override;
  // What servers hold of it is freed.
  void DropOnServers();
  void BeginStop(Millis grace) override;
  std::string Forget(bool anew) override;
  std::string AfterRestart() const override;
  void GoOnAfterRestart() override;
  Story::Fields CloseProgress() override;
  // main() has ended: what it was at, and with which closures, is over.
  void ForgetMoment();
  void DescribeWorker(const TaskId& worker, v1::TaskState& state) const override;
  bool HasBegun() const { return record().plan().view() > 0; }
  // main() ran, or may have, when the coordinator before this one ended.
  bool MayHaveRun() const;
  bool MayBeginAnew() const;
  std::uint32_t MostRestarts() const;
  void RefreshReason();

  // program_workers.cc
  void OnArrival(const Member& member, const Arrival& arrival) override;
  void OnTaskDraining(const TaskId& task) override;
  // Gives the job as many workers as it may have and are there, the least busy first.
  void Allocate();
  void StartExecutor(const Member& worker);
  void OnExecutorAnswer(const TaskId& task, Incarnation incarnation, const Status& status);
  void OnExecutorReady(const TaskId& task, Executor& executor, const v1::ExecutorEvent& event);
  void OnExecutorGone(const Member& member, Executor& executor, const v1::ExecutorEvent& event);
  void RestartExecutorLater(const TaskId& task, Executor& executor);
  // This worker cannot start one: another takes its place, it is asked again later.
  void LeaveOut(const TaskId& task, const Status& why);
  bool AnyReady() const;
  // "worker:0, worker:2": those whose executors are ready.
  std::string ReadyNames() const;

  // program_driver.cc
  void StartDriver();
  bool MayStartDriver() const;
  void RunDriver();
  // Chooses the job's parameter servers, where it has a number of them.
  void ChooseServers();
  void WatchTheMissing();
  // The job's own that are there.
  std::vector<const Member*> Servers() const;
  void OnServerLost(const Member& server);
  // All that are there, to the driver.
  void TellMembers();
  void TellVerdict(const TaskId& task, const Executor& executor, v1::ExecutorVerdict::Cause cause,
                   const std::string& how, const std::vector<std::string>& lines,
                   const v1::ExecutorEvent* event = nullptr);
  void TellStop(Millis grace);

  // program_evaluator.cc
  void StartEvaluator();
  void StartEvaluatorLater();
  void TellEvaluatorToEnd();
  void OnEvaluatorMessage(const v1::FromProgram& message);
  void OnEvaluatorExit(bool success, const std::string& how);
  void Succeed(const std::string& message);
  void AwaitEvaluator();

  void OnDriverReady(const v1::ProgramReady& ready);
  // The driver has failed: main() begins anew, or the job ends with this.
  void OnFailure(const Status& why, const std::string& what, const std::string& how,
                 const Driver& ended);

  // The beginning is on disk: executors may be started.
  bool open_ = false;
  std::map<TaskId, Executor> executors_;
  Fitness fitness_;
  std::uint32_t executors_started_ = 0;
  Driver driver_;
  std::uint32_t drivers_started_ = 0;
  struct Evaluator {
    Incarnation number;  // 0: none runs
    bool running = false;
    bool planned = false;  // it is started again soon
    int ends = 0;          // that were failures
  };
  Evaluator evaluator_;
  // main() has ended well, as this says, and the evaluator has not.
  std::optional<std::string> succeeds_;
  // The parameter servers that this driver may use; empty: all.
  std::set<TaskId> servers_;
  // So many the last driver had when it began: the next one waits for as many.
  std::size_t servers_had_ = 0;
  // Waits for missing tasks that are over, and the last one that is watched.
  std::uint64_t waits_ = 0;
  std::optional<std::uint64_t> watched_wait_;
  // main() waits to begin anew.
  bool pausing_ = false;
  std::uint64_t members_version_ = 0;
  // The cluster was asked to end, and main() has not ended in time.
  bool given_up_ = false;
};

}  // namespace muster::coordinator
