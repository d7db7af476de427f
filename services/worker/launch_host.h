// Gives worker::Launches its processes, files and addresses: the command runs under muster-guard,
// in a folder of the job's, with the files that were sent beside it.
//
// Threading: made and used on the daemon's strand, but for Close(); files are fetched on a thread
// of their own, what launches that have begun wait for is done on another, commands are looked for
// on a third, ended processes are buried on a fourth. Lifetime: strand and client outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/process/child.h"
#include "common/process/line_gate.h"
#include "common/process/ports.h"
#include "services/common/attach_client.h"
#include "services/worker/file_cache.h"
#include "worker/launches.h"

namespace muster::services {

class LaunchHost final : private worker::LaunchIo {
 public:
  struct Options {
    std::uint32_t worker_index = 0;
    // The host's threads for this worker; its processes share them (OMP_NUM_THREADS).
    std::uint32_t threads = 1;
    // The numeric address that processes can listen at, and the name that others know it by (empty:
    // the same).
    std::string listen_host;
    std::string advertised_host;
    // Where the working folders of jobs lie.
    std::string folder;
    // Where those that read data with Muster keep decoded copies and indexes.
    std::string data_cache = {};
    // The cluster's, of which the keys of jobs are made; processes do not get it.
    std::string token;
    // Groups of processes encrypt what they say to each other between hosts.
    bool tls = false;
  };

  LaunchHost(Options options, ThreadScheduler& strand, AttachClient& client, FileCache files);
  ~LaunchHost() override;

  // On the strand.
  worker::Launches& launches() { return launches_; }
  const worker::Launches& launches() const { return launches_; }
  // From any other thread, once the strand has ended: kills what runs, and waits for it.
  void Close();

 private:
  struct Running;

  void Look(const v1::LaunchSpec& spec, std::function<void(const Status&)> then) override;
  void Prepare(const std::string& job_id, LaunchNumber launch, const v1::LaunchSpec& spec,
               std::uint32_t addresses) override;
  void WriteWorkers(const std::string& job_id, LaunchNumber launch,
                    const std::string& text) override;
  Status Run(worker::LaunchedId id, const std::string& job_id, const v1::LaunchSpec& spec,
             const v1::LaunchProcess& process) override;
  void Ask(worker::LaunchedId id) override;
  void Kill(worker::LaunchedId id) override;
  std::optional<process::Wait> WaitOf(worker::LaunchedId id) const override;
  std::uint64_t MemoryOf(worker::LaunchedId id) override;
  void Release(const std::string& job_id) override;
  void Forget(const std::string& job_id) override;
  void ToCoordinator(v1::DaemonMessage message) override;
  void Reply(StreamId stream, v1::CommandResult result) override;

  std::string FolderOf(const std::string& job_id) const;
  // Beside the folder: what users see there is their own.
  std::string WorkersFileOf(const std::string& job_id) const;
  // kNotFound: the command is not here. Not on the strand: a disk that hangs would take the
  // heartbeats along.
  Status FindCommand(const v1::LaunchSpec& spec) const;
  // On files_'s thread: the folder, and in it what was sent.
  Status Place(const std::string& folder, const v1::LaunchSpec& spec) const;
  Result<std::vector<std::string>> ClaimAddresses(const std::string& job_id, std::uint32_t count);
  std::map<std::string, std::string> EnvironmentOf(const std::string& job_id,
                                                   const v1::LaunchSpec& spec,
                                                   const v1::LaunchProcess& process) const;
  void Signal(worker::LaunchedId id, int signal);
  void PassLines(worker::LaunchedId id, const std::shared_ptr<process::LineGate>& lines);

  const Options options_;
  const std::string guard_;
  const FileCache cache_;  // on files_'s thread
  ThreadScheduler& strand_;
  AttachClient& client_;
  worker::Launches launches_;
  process::PortAllotter ports_;
  std::map<std::string, std::vector<process::PortClaim>> claims_;
  std::map<worker::LaunchedId, std::shared_ptr<Running>> running_;
  ThreadScheduler reaper_;
  // Pids, and who is there: neither may wait for another job's files, which take minutes.
  ThreadScheduler begun_;
  ThreadScheduler looks_;
  ThreadScheduler files_;
};

}  // namespace muster::services
