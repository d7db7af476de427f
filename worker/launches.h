// Decides what a worker daemon does with the processes of launched jobs (LaunchSpec): readies a
// launch, starts its processes, asks them to end, tells how they ended. No processes, files or
// sockets here: they are behind LaunchIo.
//
// One launch for each job. A higher number replaces a lower one, whose processes are gone before
// anything of the new one is made; a lower one is refused (kAborted). A launch goes on while the
// coordinator is away; how its processes ended is kept until the coordinator stops the launch, and
// told again at each registration.
//
// Threading: lives on `scheduler`'s strand. Lifetime: scheduler and io outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/lifeline.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/process/wait_page.h"
#include "muster/v1/cluster.pb.h"
#include "worker/command_waiter.h"

namespace muster::worker {

// A process of a launch, unique for the life of the daemon.
using LaunchedId = Id<struct LaunchedProcessTag>;

// How one of them ended.
struct LaunchedEnd {
  std::string how;
  std::uint32_t code = 0;
  std::uint32_t signal = 0;
  std::int64_t time_us = 0;
  // The last line on stderr.
  std::string last_error = {};
  // It had said that another one in its place would end alike.
  bool final = false;
  // It had said that what it was to take part in had ended before.
  bool too_late = false;
};

class LaunchIo {
 public:
  virtual ~LaunchIo() = default;
  // Whether the command is on this host (kNotFound); `then` is told, on the strand. PATH may lie on
  // a disk that hangs: it is not waited for.
  virtual void Look(const v1::LaunchSpec& spec, std::function<void(const Status&)> then) = 0;
  // Fetches the launch's files into the job's working folder and claims `addresses` addresses in
  // place of those that the job had; Launches::OnPrepared() follows. Nothing is claimed for a
  // launch that is awaited no more (Launches::Awaits()): nobody would release it.
  virtual void Prepare(const std::string& job_id, LaunchNumber launch, const v1::LaunchSpec& spec,
                       std::uint32_t addresses) = 0;
  // Elastic jobs: puts `text` where the job's processes read who is there;
  // Launches::OnWorkersWritten() follows.
  virtual void WriteWorkers(const std::string& job_id, LaunchNumber launch,
                            const std::string& text) = 0;
  // Starts the command. Its pid, its lines and its end come under this id.
  virtual Status Run(LaunchedId id, const std::string& job_id, const v1::LaunchSpec& spec,
                     const v1::LaunchProcess& process) = 0;
  // SIGTERM to its process group.
  virtual void Ask(LaunchedId id) = 0;
  // SIGKILL to it and to all that it has started. Never blocks; its end comes all the same.
  virtual void Kill(LaunchedId id) = 0;
  // The collective call in which it stands, if that has lasted.
  virtual std::optional<process::Wait> WaitOf(LaunchedId id) const = 0;
  // Bytes that it and all that it has started hold, as they were read last; 0: not read yet, or it
  // has ended.
  virtual std::uint64_t MemoryOf(LaunchedId id) = 0;
  // Lets go of the addresses.
  virtual void Release(const std::string& job_id) = 0;
  // Deletes the working folder, too.
  virtual void Forget(const std::string& job_id) = 0;
  virtual void ToCoordinator(v1::DaemonMessage message) = 0;
  virtual void Reply(StreamId stream, v1::CommandResult result) = 0;
};

class Launches {
 public:
  struct Options {
    std::uint32_t worker_index = 0;
    Millis log_delay{100};
  };

  Launches(Options options, Scheduler& scheduler, LaunchIo& io)
      : options_(options), scheduler_(scheduler), io_(io) {}

  // False: the command is none of its own.
  bool OnCommand(StreamId stream, const v1::Command& command);
  // Tells what is here again. A launch that has not begun never does: its addresses are let go, and
  // its folder, if no launch of the job has begun here.
  void OnAttached();

  // Nothing has replaced or stopped this launch while LaunchIo::Prepare() is at work.
  bool Awaits(const std::string& job_id, LaunchNumber launch) const;
  void OnPrepared(const std::string& job_id, LaunchNumber launch,
                  const Result<std::vector<std::string>>& addresses);
  void OnWorkersWritten(const std::string& job_id, LaunchNumber launch, const Status& status);
  void OnStarted(LaunchedId id, int pid);
  void OnLine(LaunchedId id, std::int64_t time_us, const std::string& line);
  void OnExited(LaunchedId id, const LaunchedEnd& end);

  // What its processes hold and wait for.
  void FillHeartbeat(v1::Heartbeat& heartbeat) const;
  // The commands that wait for files.
  void NameFetching(v1::Heartbeat& heartbeat) const;

  // This worker was asked to end: so are its processes, and nothing new begins.
  void NoteDraining();
  // Calls `done` when no process runs; after `limit` they are killed, and 2 s later nobody waits.
  void Drain(Millis limit, std::function<void()> done);

 private:
  using Waiter = CommandWaiter;
  struct Process {
    v1::Task task;
    int pid = 0;
    bool running = true;
    bool asked = false;
    std::optional<LaunchedEnd> end;
    std::deque<std::string> last_lines;
    v1::LogLines lines;
    std::uint64_t dropped_lines = 0;
    bool flush_planned = false;
  };
  struct Launch {
    LaunchNumber number;
    v1::PrepareLaunch request;
    enum class Stage {
      kClearing,   // those of the launch before it are being killed
      kPreparing,  // files are fetched
      kReady,
      kStarted,
    };
    Stage stage = Stage::kClearing;
    std::vector<std::string> addresses;
    std::vector<Waiter> preparing;
    // Waits for the file of who is there.
    std::optional<std::pair<Waiter, v1::StartLaunch>> starting;
    // What is to stand in that file, and whether that is tried again.
    std::string workers;
    bool write_planned = false;
    std::map<LaunchedId, Process> processes;
    // This launch of the job, or one before it, has started processes here.
    bool began = false;
    bool stopping = false;
    bool forget = false;
    std::vector<Waiter> stoppers;
    Scheduler::TimerId kill_timer = 0;
  };

  void Prepare(Waiter waiter, const v1::PrepareLaunch& request);
  // Nothing of the launch before it runs any more.
  void BeginPreparing(const std::string& job_id, Launch& launch);
  void Start(Waiter waiter, const v1::StartLaunch& request);
  void StartNow(Launch& launch, Waiter waiter, const v1::StartLaunch& request);
  void Update(Waiter waiter, const v1::UpdateLaunch& request);
  void WriteLater(const std::string& job_id, Launch& launch);
  void Stop(Waiter waiter, const v1::StopLaunch& request);
  void FinishStop(const std::string& job_id);
  // A launch that has not begun, after its stream.
  void GiveUp(const std::string& job_id, Launch& launch);
  void Check(Waiter waiter, const v1::JobSpec& spec);
  static bool AnyRuns(const Launch& launch);
  void KillAll(Launch& launch);
  void AskAll(Launch& launch);
  // The job's launch and the process; null: it is known no more.
  std::pair<std::string, Process*> Find(LaunchedId id);
  void Tell(v1::LaunchEvent::Kind kind, const std::string& job_id, const Launch& launch,
            const Process& process);
  void FlushLines(const std::string& job_id, LaunchedId id);
  void Answer(Waiter waiter, const Status& status, v1::CommandResult result = {}) {
    AnswerCommand(io_, waiter, status, std::move(result));
  }
  void AnswerAll(std::vector<Waiter>& waiters, const Status& status);
  void FinishDrain();

  const Options options_;
  Scheduler& scheduler_;
  LaunchIo& io_;
  const Lifeline lifeline_;
  std::uint64_t next_process_ = 1;
  std::map<std::string, Launch> launches_;
  std::map<LaunchedId, std::string> jobs_;  // whose it is
  bool draining_ = false;
  std::function<void()> drained_;
};

}  // namespace muster::worker
