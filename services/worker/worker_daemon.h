// The worker daemon: gives worker::WorkerCore its processes, its files and its coordinator.
//
// Threading: Start() and Drain() from main; everything else happens on its strand, but for killed
// processes, which are waited for on a thread of their own, and downloads, which have another.
// Lifetime: the daemon outlives it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/running_table.h"

#include "common/base/scheduler.h"
#include "common/process/line_gate.h"
#include "common/process/memory.h"
#include "services/common/attach_client.h"
#include "services/common/burials.h"
#include "services/common/daemon.h"
#include "services/common/piped_process.h"
#include "services/worker/file_cache.h"
#include "services/worker/file_fetch.h"
#include "services/worker/launch_host.h"
#include "worker/worker_core.h"

namespace muster::services {

std::vector<config::Setting> WorkerSettings();

class WorkerDaemon final : private AttachHandler, private worker::WorkerIo {
 public:
  static Result<std::unique_ptr<WorkerDaemon>> Start(Daemon& daemon, GrpcServer& grpc);
  ~WorkerDaemon() override;

  // Takes no more closures, lets running ones end, says goodbye.
  void Drain();

 private:
  // Folders and names of this host.
  struct Places {
    std::string cache;
    // Where executors of programs serve over TCP, and have their Unix sockets (empty: none).
    std::string listen_host;
    std::string socket_folder;
  };
  WorkerDaemon(Daemon& daemon, GrpcServer& grpc, worker::WorkerCore::Options options,
               Places places);

  void OnAttached(const v1::Welcome& welcome) override;
  void OnDetached(const Status& why) override;
  void OnCommand(StreamId stream, const v1::Command& command) override;
  void FillHeartbeat(v1::Heartbeat& heartbeat) override;
  void OnRefused(const Status& why) override;
  void OnDrain(const std::string& reason) override;
  void AddMetrics(Samples& samples) const;
  // While it is attached.
  void TellStatus();

  Result<int> Launch(worker::ProcessId process) override;
  void Complete(v1::ProgramStart& start) const override;
  Result<int> LaunchProgram(worker::ProcessId process, const std::string& path,
                            const v1::ProgramSpec& program, const v1::ProgramStart& start) override;
  void Kill(worker::ProcessId process) override;
  Result<Millis> CpuTime(worker::ProcessId process) const override;
  std::optional<process::Wait> WaitOf(worker::ProcessId process) const override;
  std::uint64_t MemoryOf(worker::ProcessId process) override;
  void Send(worker::ProcessId process, const v1::ToExecutor& message) override;
  void SendProgram(worker::ProcessId process, const v1::ToProgram& message) override;
  void Fetch(const std::string& sha256, worker::FileKind kind) override;
  void ToCoordinator(v1::DaemonMessage message) override;
  void Reply(StreamId stream, v1::CommandResult result) override;

  FileCache::Fetch Fetcher();
  // `pid`: its own, once it is known; 0 before.
  template <class Process>
  typename Process::Events EventsOf(worker::ProcessId process,
                                    const std::shared_ptr<std::atomic<int>>& pid, auto on_message);
  // What an executor that has ended did last. Nothing: it began none. Any thread.
  std::optional<dispatch::RunningTable::Left> LeftBy(int pid) const;
  // Ends a process that is one of these.
  template <class Process>
  void Bury(std::map<worker::ProcessId, std::shared_ptr<Process>>& processes,
            worker::ProcessId process);
  // Hands on what an executor has written, and looks again soon when there was something.
  void PassLines(worker::ProcessId process, const std::shared_ptr<process::LineGate>& lines);

  Daemon& daemon_;
  GrpcServer& grpc_;
  const std::string executor_program_;
  const std::string listen_host_;
  const std::string socket_folder_;
  const std::string data_cache_;  // decoded copies and indexes, of models and programs
  ThreadScheduler strand_;
  FileFetch fetch_;
  std::uint64_t told_moved_ = 0;
  const FileCache archives_;  // on files_'s thread, as the next
  const FileCache program_files_;
  AttachClient client_;
  LaunchHost launches_;
  worker::WorkerCore core_;
  std::map<worker::ProcessId, std::shared_ptr<ExecutorProcess>> executors_;
  std::map<worker::ProcessId, std::shared_ptr<ProgramProcess>> programs_;
  std::map<worker::ProcessId, std::unique_ptr<process::WaitPage>> wait_pages_;
  std::map<worker::ProcessId, process::MemoryGauge> memory_;
  Burials burials_;
  ThreadScheduler files_;
};

}  // namespace muster::services
