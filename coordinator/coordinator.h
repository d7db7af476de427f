// The coordinator of a cluster: who is there, which jobs run, who does what. All of it is here, and
// none of it touches a socket: services/coordinator brings messages in and carries them out.
//
// Threading: not thread-safe; everything happens on the strand of `scheduler`.
// Lifetime: what Parts names outlives it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/lifeline.h"
#include "coordinator/launch_job.h"
#include "coordinator/model_job.h"
#include "coordinator/program_job.h"

namespace muster::coordinator {

class Coordinator : private Membership::Observer {
 public:
  struct Options {
    Millis lease{3'000};
    Millis heartbeat{250};
    // The ps and worker tasks of the cluster spec; empty: any may come.
    std::vector<TaskId> tasks;
    // More wait for their turn.
    std::size_t max_running_jobs = 4;
    // Jobs that have ended and are remembered; of older ones rows and logs are deleted, checkpoints
    // are not.
    std::size_t keep_jobs = 1'000;
    // Who will come, where the cluster spec does not say; others may come too.
    std::vector<TaskId> expected = {};
    JobOptions jobs;
    std::string version;
    std::string state_directory;
    bool insecure_network = false;
    Predecessor before = {};
  };
  struct Parts {
    Scheduler& scheduler;
    JournalWriter& journal;
    Logs& logs;
    Checkpoints& checkpoints;
    Drivers& drivers;
    // Whether this file (SHA-256) has been uploaded. It is on a disk: the answer may take its time.
    std::function<void(const std::string& sha256, std::function<void(bool)> then)> has_file;
    // These files are jobs'; others may go.
    std::function<void(std::set<std::string> used)> keep_files = nullptr;
    std::function<void(const std::string& job_id, const v1::Event&)> on_event;
    // "has registered: process 7 on node-3", "is lost: its connection was reset"; null: nobody
    // hears.
    std::function<void(const TaskId& task, const std::string& what)> on_task = nullptr;
    // Keeps the figures of model jobs; null: nobody does.
    Figures* figures = nullptr;
  };

  // Loads the jobs; unfinished ones go on by themselves.
  static Result<std::unique_ptr<Coordinator>> Create(Options options, Parts parts);
  ~Coordinator() override;

  // The coordinator is asked to end: no job begins, closures in flight finish, a checkpoint of each
  // running job is saved; then, or after `limit` (jobs that are not saved by then tell so), `done`.
  void Drain(Millis limit, std::function<void()> done);

  Epoch epoch() const { return world_.epoch; }
  void set_grpc_address(std::string address) { grpc_address_ = std::move(address); }
  void set_page_address(std::string address) { page_address_ = std::move(address); }

  // --- Daemons. See Membership for the errors of Register.
  Result<SessionId> Register(const v1::Register& info, std::shared_ptr<DaemonLink> link);
  void OnMessage(SessionId session, v1::DaemonMessage message);
  void OnStreamEnded(SessionId session);
  // The parent of a daemon says how it ended, of which the beginning is kept. Ignored unless that
  // process holds the task.
  void OnDaemonExit(const TaskId& task, std::uint32_t pid, const std::string& how);
  // How a driver or an evaluator ended; `process` is its job's id, an evaluator's JobAndTask()
  // (world.h).
  void OnDriverExit(const std::string& process, Incarnation driver, bool success,
                    const std::string& how);
  // A program's driver says so.
  void OnDriverMessage(const std::string& process, Incarnation driver,
                       const v1::FromProgram& message);
  void OnDriverLine(const std::string& process, std::int64_t time_us, std::string line);

  // --- Drivers and people. By id or by name; kNotFound. kFailedPrecondition: it is one job's id
  // and another one's name.
  Result<Job*> Find(const std::string& job);
  // As processes name it.
  Result<Job*> FindById(const std::string& id);
  // The same, of those that muster-trainer drives. kFailedPrecondition: it is of another kind.
  Result<ModelJob*> FindModel(const std::string& id);
  using ThenSubmitted = std::function<void(Result<v1::SubmitJobReply>)>;
  // Errors are those of jobs.proto.
  void Submit(const v1::SubmitJobRequest& request, ThenSubmitted then);
  // The newest first, as many as fit an answer (kMostAnswerBytes).
  v1::ListJobsReply List() const;
  // In the order of submission.
  void ForEachJob(const std::function<void(const Job&)>& look) const;
  v1::ClusterStatus Status() const;
  // Takes a task out of work, and lets it in again (coordinator_tasks.cc). `by`: "submitter ana".
  // kNotFound: there is no such task. kInvalidArgument: it is the coordinator's own. kUnavailable:
  // that could not be written.
  void TakeOut(const TaskId& task, const std::string& by,
               std::function<void(Result<v1::DrainTaskReply>)> then);
  void LetIn(const TaskId& task, std::function<void(Result<v1::UndrainTaskReply>)> then);
  void ListCheckpoints(const std::string& job,
                       std::function<void(Result<v1::ListCheckpointsReply>)> then);
  // Removes checkpoints that nobody goes on from (coordinator_collect.cc).
  void CollectCheckpoints(const v1::CollectCheckpointsRequest& request,
                          std::function<void(Result<v1::CollectCheckpointsReply>)> then);
  // kNotFound: no such job, or no such task in it.
  void ReadLogs(const std::string& job, const LogStore::Query& query,
                std::function<void(Result<LogStore::Page>)> then);

 private:
  Coordinator(Options options, Parts parts);
  void TellOf(const Member& member, const std::string& what);
  void OnUp(const Member& member, const Arrival& arrival) override;
  void OnDraining(const Member& member, const std::string& reason) override;
  void OnSessionEnded(SessionId session, const std::string& why) override;
  void OnLost(const Member& member) override;
  void OnHeld(const Member& member) override;
  void OnStall(Millis slept) override;

  // What its spec counts on in the store of files.
  static std::set<std::string> FilesOf(const v1::JobSpec& spec);
  // Null: there is none.
  Job* Named(const std::string& name) const;
  // `then`, once, and not later than `limit` (with the error `late`).
  template <class Value>
  std::function<void(Value)> Within(Millis limit, const absl::Status& late,
                                    std::function<void(Value)> then);
  // The job of this name, if there is one: the same spec answers (and goes on, where it was stopped
  // or has failed), another is refused. False: there is none, and `then` is not called.
  bool Existing(const v1::SubmitJobRequest& request, const ThenSubmitted& then);
  // kAlreadyExists: the name is the id of another job, which people could not tell from it.
  muster::Status CheckName(const std::string& name) const;
  // Its files, and its checkpoint.directory, before anything is stored.
  void LookForFiles(const v1::JobSpec& spec, std::function<void(absl::Status)> then);
  void LookAtFolder(const v1::JobSpec& spec, std::function<void(absl::Status)> then);
  // kFailedPrecondition: another job than `but` that has not ended has it.
  absl::Status FolderInUse(const std::string& folder, const Job* but) const;
  Checkpoints::Claimant ClaimantOf(const v1::Job& job) const;
  // Ids of those that have not ended.
  std::set<std::string> LiveJobs() const;
  void OnLaunchEvent(const Member& member, const v1::LaunchEvent& event);
  muster::Status CheckKnown(const TaskId& task) const;
  v1::TaskState StateOf(const TaskId& task) const;
  // Its process has ended, or another one came: nobody waits for it.
  void OnOut(const TaskId& task);
  // What may go of each root. `job`: only that one's.
  struct Collecting;
  std::map<std::string, Checkpoints::Sweep> SweepsOf(const Job* job, bool finished) const;
  void CollectRoots(const std::shared_ptr<Collecting>& collecting);
  // What a parameter server still holds of jobs that ended or moved on while it was away.
  void DropLeftovers(const Member& ps);
  void Check(const v1::SubmitJobRequest& request, ThenSubmitted then);
  void Accept(const v1::SubmitJobRequest& request, const std::optional<CheckOutcome>& outcome,
              const ThenSubmitted& then);
  void AcceptNow(const v1::SubmitJobRequest& request, const std::optional<CheckOutcome>& outcome,
                 const ThenSubmitted& then);
  void AcceptNext();
  v1::SubmitJobReply DryRun(const v1::JobSpec& spec, std::vector<std::string> problems,
                            const CheckOutcome& outcome);
  // Whom a job of this spec would wait for now, in words; empty: nobody.
  std::string WouldWaitFor(const v1::JobSpec& spec);
  // OK: a task of the job, which has written nothing.  kNotFound: no task at all.
  muster::Status CheckTask(const Job& job, const std::string& task) const;
  void AdmitJobs();
  void TellTurns(const std::vector<std::pair<JobNumber, bool>>& waiting);
  // How many jobs have a slot.
  std::size_t Running() const;
  // Lets go whom no job needs any more: daemons that were asked to end, and this one.
  void OnSettled();
  void ForgetJobs();
  void KeepFiles();

  const Options options_;
  Parts parts_;
  Commands commands_;
  Membership members_;
  SpecChecker checker_;
  StepMarks marks_;
  World world_;
  // By number: the order of submission.
  std::map<JobNumber, std::unique_ptr<Job>> jobs_;
  std::map<std::string, JobNumber> by_id_;
  std::map<std::string, JobNumber> by_name_;
  JobNumber last_number_;
  // The first one is being accepted, the others wait for it.
  std::deque<std::function<void()>> accepting_;
  std::set<SessionId> released_;
  // Tasks whose row of being taken out is on its way off the disk.
  std::set<TaskId> letting_in_;
  std::function<void()> drained_;
  Lifeline lifeline_;
  std::string grpc_address_;
  std::string page_address_;
};

}  // namespace muster::coordinator
