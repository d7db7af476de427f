// Decides what a worker daemon does: which executor processes run, what goes to them and what goes
// back to the coordinator. No processes, sockets or threads here: they are behind WorkerIo.
//
// One executor for each job. A job's executor belongs to one (epoch, view) and has a number; a
// newer one replaces it, an older one is refused (kAborted). Its driver speaks to it directly; it
// tells its daemon by a pulse what it runs. That of a program is the user's own executable. Jobs
// are checked and data is probed in an executor of their own with a deadline. One executor is
// started in advance, since libtorch takes its time.
//
// When the coordinator is away executors go on; what they push is fenced by the view, and by the
// epoch once another coordinator has taken it over. That one asks for them (StartExecutor.adopt);
// one that nobody has asked for within `unclaimed_limit` is ended. What is checked, probed or
// evaluated ends with the stream that has asked for it, as the next one begins.
//
// Threading: lives on `scheduler`'s strand. Lifetime: scheduler and io outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/lifeline.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/process/wait_page.h"
#include "muster/v1/executor.pb.h"
#include "muster/v1/program.pb.h"
#include "worker/command_waiter.h"

namespace muster::worker {

// An executor process, unique for the life of the daemon.
using ProcessId = Id<struct ExecutorProcessTag>;

// What becomes of an uploaded file here.
enum class FileKind { kArchive, kProgram };

class WorkerIo {
 public:
  virtual ~WorkerIo() = default;
  // Starts muster-executor; its lines, messages and end come to the core under this id. Returns the
  // pid.
  virtual Result<int> Launch(ProcessId process) = 0;
  // Fills in what is this host's for serving a driver: key, addresses.
  virtual void Complete(v1::ProgramStart& start) const = 0;
  // Starts a process of a user's program from the file at `path`, and gives it `start`, completed,
  // as its first message. As with Launch() otherwise.
  //   kInvalidArgument, kFailedPrecondition: the file cannot run here; says what to do.
  virtual Result<int> LaunchProgram(ProcessId process, const std::string& path,
                                    const v1::ProgramSpec& program,
                                    const v1::ProgramStart& start) = 0;
  // Kills it; nothing is reported of it after that but its last lines and its end. Never blocks.
  virtual void Kill(ProcessId process) = 0;
  // Processor time that it has used since it began; kNotFound once it has ended.
  virtual Result<Millis> CpuTime(ProcessId process) const = 0;
  // The collective call in which an executor stands, if it has lasted.
  virtual std::optional<process::Wait> WaitOf(ProcessId process) const = 0;
  // Bytes that it and its children hold, as they were read last; 0: not read yet, or it has ended.
  virtual std::uint64_t MemoryOf(ProcessId process) = 0;
  virtual void Send(ProcessId process, const v1::ToExecutor& message) = 0;
  virtual void SendProgram(ProcessId process, const v1::ToProgram& message) = 0;
  // Makes the uploaded file available here; OnFetched() follows.
  virtual void Fetch(const std::string& sha256, FileKind kind) = 0;
  virtual void ToCoordinator(v1::DaemonMessage message) = 0;
  virtual void Reply(StreamId stream, v1::CommandResult result) = 0;
};

// How a job's executor ended; see v1.ExecutorEvent.
struct ExecutorEnd {
  std::string how;
  bool stuck = false;
  bool from_outside = false;
  // Closures of a program that ran then, where that is known.
  std::optional<std::vector<ClosureId>> running = std::nullopt;
};

class WorkerCore {
 public:
  struct Options {
    std::uint32_t worker_index = 0;
    // Computing threads of each executor.
    std::uint32_t threads = 1;
    std::string link = "auto";
    std::string host_id = {};
    // Where drivers reach executors of programs, if not at the address that these bind.
    std::string advertised_host = {};
    std::string cache_directory = {};
    // Keep one executor started in advance.
    bool warm = true;
    Millis check_limit{60'000};
    Millis unclaimed_limit{60'000};
    // After one was taken: not at once, the job that took it starts just now.
    Millis warm_delay{3'000};
    Millis log_delay{100};
    // An executor that has closures and neither ends one nor uses the processor for so long is
    // killed: it is stopped, deadlocked, or waits for what will not come. 0: never.
    Millis stuck_limit{30'000};
    // The same for one that computes, or waits for other members of its group that do, so that an
    // honest long step is not cut short. 0: never.
    Millis step_limit{600'000};
  };

  WorkerCore(Options options, Scheduler& scheduler, WorkerIo& io);

  void Start();
  void OnAttached();
  void OnCommand(StreamId stream, const v1::Command& command);
  // Closures done, the pid of an executor that has a job, and what such executors hold and wait
  // for.
  void FillHeartbeat(v1::Heartbeat& heartbeat) const;
  // The commands that wait for a file.
  void NameFetching(v1::Heartbeat& heartbeat) const;

  void OnLine(ProcessId process, std::int64_t time_us, const std::string& line);
  void OnMessage(ProcessId process, const v1::FromExecutor& message);
  void OnProgram(ProcessId process, const v1::FromProgram& message);
  // `from_outside`, `running`: as v1.ExecutorEvent says. `closures`: how many it had ended, which
  // its last pulse may not have said; 0: nobody knows.
  void OnExited(ProcessId process, const std::string& how, bool from_outside = false,
                std::optional<std::vector<ClosureId>> running = std::nullopt,
                std::uint64_t closures = 0);
  void OnFetched(const std::string& sha256, const Result<std::string>& path,
                 FileKind kind = FileKind::kArchive);

  // Takes no more work; calls `done` when no closure runs, or after `limit`. Then all executors are
  // killed.
  void Drain(Millis limit, std::function<void()> done);

 private:
  using Waiter = CommandWaiter;
  enum class Use { kSpare, kCheck, kJob };
  struct Process {
    int pid = 0;
    Use use = Use::kSpare;
    bool program = false;
    std::string job_id;
    std::deque<std::string> last_lines;
    // The last line that told why a process ends by a signal; many frames may follow it.
    std::string cause = {};
  };
  // An executor of a job that was killed and has not ended yet.
  struct Dying {
    std::string job_id;
    // Its closures, as far as they are counted.
    std::uint64_t closures = 0;
  };
  // It stays when it has ended, for its fence, until kMostJobs others have begun: what it holds
  // then is to be small, so no deques, which take memory when they are empty.
  struct Job {
    // Which start of an executor its last one was, of all jobs.
    std::uint64_t begun = 0;
    Epoch epoch;
    ViewId view;
    // Its executor's number.
    Incarnation incarnation;
    bool program = false;
    // What it is to begin with, which may be much, until its process has it.
    v1::StartExecutor start;
    std::vector<Waiter> waiters;
    std::optional<ProcessId> process;
    bool starting = false;
    bool ready = false;
    // The executor of this number was ready once, and served there.
    bool served = false;
    v1::DataEndpoint endpoint;
    std::string group_address;
    bool claimed = true;
    // Asked to go on under a later epoch, in this order.
    std::vector<Waiter> adopters;
    // For the watchdog: since the last closure that ended.
    Millis cpu{0};
    int looks = 0;
    int idle_looks = 0;
    // Its pulse: the last, looks since then, and one is awaited before it counts as idle.
    v1::ProgramPulse pulse;
    int silent_looks = 0;
    bool awaits_pulse = false;
    // Asked for the model's values, in this order.
    std::vector<Waiter> values_waiters;
    // Asked to save the variables that its executor holds.
    std::vector<Waiter> save_waiters;
    // Asked to become a member of a group.
    std::vector<Waiter> join_waiters;
    v1::LogLines lines;
    std::uint64_t dropped_lines = 0;
    bool flush_planned = false;
  };
  struct Check {
    Waiter waiter;
    Scheduler::TimerId deadline = 0;
    std::string what;
    // Without a sign that it gets on; 0: it may take for ever.
    Millis limit{0};
  };
  using OnPath = std::function<void(const Result<std::string>&)>;
  // Who wants a file. A job's waiters are its own.
  struct Wanting {
    std::optional<Waiter> waiter;
    OnPath then;
  };
  using File = std::pair<FileKind, std::string>;

  void StartExecutor(Waiter waiter, const v1::StartExecutor& start);
  // Where there are more than kMostJobs, the ended ones that began first go.
  void ForgetJobs();
  // kAborted: of the past. True: it is what runs, and `waiter` has its answer or will have it.
  Result<bool> IsKnown(const Job& job, Waiter waiter, const v1::StartExecutor& start);
  // Lets the executor that is there go on under the epoch of `start`. False: none can.
  bool Adopt(Job& job, Waiter waiter, const v1::StartExecutor& start);
  void OnAdopted(ProcessId process, const v1::AdoptAnswer& answer);
  void BeginJob(const std::string& job_id, const std::string& archive_path);
  // kAborted: of an older epoch or view than the job's here; 0: not compared.
  Status CheckFence(const std::string& job_id, Epoch epoch, ViewId view) const;
  Status IsOver(const std::string& job_id, const Job& job, Epoch epoch, ViewId view) const;
  void StopExecutor(const std::string& job_id);
  void RunCheck(Waiter waiter, v1::ToExecutor message, const v1::JobSpec& spec, std::string what,
                Millis limit);
  void BeginCheck(Waiter waiter, v1::ToExecutor message, std::string what, Millis limit);
  void WatchCheck(ProcessId process, Waiter waiter, std::string what, Millis limit);
  // It gets on: its time begins anew.
  void ExtendCheck(ProcessId process);
  // Answers a check; the process becomes the spare again or ends.
  void EndCheck(ProcessId process, const Status& status, v1::CommandResult result, bool keep);
  void EndChecks(const Status& why);
  // Programs.
  Result<ProcessId> LaunchProgram(Use use, const std::string& job_id, const std::string& path,
                                  const v1::ProgramSpec& spec, v1::ProgramStart start);
  void BeginProgram(const std::string& job_id, const std::string& path);
  void CheckProgram(Waiter waiter, const v1::JobSpec& spec);
  void OnProbed(ProcessId process, const v1::ProgramReady& ready);
  void OnServing(ProcessId process, const v1::ProgramReady& ready);

  void OnReady(ProcessId process, const v1::ExecutorReady& ready);
  // The job's executor has said `status` of its start; `what` it is, where it serves closures, and
  // where it waits for a group, if it does.
  void EndStart(ProcessId process, const Status& status, const std::string& what,
                v1::DataEndpoint endpoint, const std::string& group_address = "");
  void OnPulse(ProcessId process, const v1::ProgramPulse& pulse);
  // An executor has ended that had done so many, `counted` of which are counted.
  void CountLast(std::uint64_t closures, std::uint64_t counted);
  void OnJobExited(const std::string& job_id, const Process& process, const ExecutorEnd& end);
  template <class Request>
  void AskExecutor(Waiter waiter, const Request& request, std::vector<Waiter> Job::* waiters,
                   v1::ToExecutor message);
  void GetValues(Waiter waiter, const v1::GetValues& request);
  void SetBuffers(Waiter waiter, const v1::SetBuffers& request);
  void SaveVariables(Waiter waiter, const v1::SaveVariables& request);
  void JoinGroup(Waiter waiter, const v1::JoinGroup& request);
  // The executor has answered the first of those who wait for that.
  void AnswerFirst(ProcessId process, std::vector<Waiter> Job::* waiters,
                   const v1::StatusProto& status, v1::CommandResult result);
  // The job whose executor can be asked. kUnavailable; kAborted: CheckFence().
  Result<Job*> Serving(const std::string& job_id, Epoch epoch, ViewId view);
  // The watchdog looks at every executor that has closures; kLooks times in stuck_limit.
  void Watch();
  void Look();
  std::optional<ExecutorEnd> Stuck(Job& job);
  static std::string WhatRuns(const Job& job);

  // What the job runs: its archive (none: an empty path) or its program.
  static File FileOf(const v1::JobSpec& spec);
  void WithFile(const File& file, std::optional<Waiter> waiter, OnPath then);
  Result<ProcessId> TakeProcess(Use use, const std::string& job_id);
  Result<ProcessId> Launch(Use use, const std::string& job_id);
  void KeepWarm(Millis delay);
  void KillProcess(ProcessId process);
  void Answer(Waiter waiter, const Status& status, v1::CommandResult result = {}) {
    AnswerCommand(io_, waiter, status, std::move(result));
  }
  void AnswerAll(Job& job, const Status& status);
  void Tell(v1::ExecutorEvent::Kind kind, const std::string& job_id, const Job& job, int pid,
            const ExecutorEnd& end = {}, const std::deque<std::string>& lines = {});
  void AddLine(const std::string& job_id, std::int64_t time_us, std::string text);
  void FlushLines(const std::string& job_id);
  void EndUnclaimed();
  void EndStarting();
  void DrainExecutors();
  void FinishDrain();
  bool Idle() const;

  const Options options_;
  Scheduler& scheduler_;
  WorkerIo& io_;
  const Lifeline lifeline_;
  std::uint64_t next_process_ = 1;
  std::map<ProcessId, Process> processes_;
  // What they had written and done still comes.
  std::map<ProcessId, Dying> dying_;
  std::optional<ProcessId> spare_;
  bool spare_planned_ = false;
  // Ended ones too, but for those of long ago.
  static constexpr std::size_t kMostJobs = 4'096;
  std::map<std::string, Job> jobs_;
  std::uint64_t begun_ = 0;
  std::map<ProcessId, Check> checks_;
  std::map<File, std::vector<Wanting>> fetches_;
  std::uint64_t closures_done_ = 0;
  Scheduler::TimerId unclaimed_timer_ = 0;
  bool watching_ = false;
  bool draining_ = false;
  std::function<void()> drained_;
};

}  // namespace muster::worker
