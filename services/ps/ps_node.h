// What a parameter server does for the coordinator: makes, saves and forgets the shards of jobs,
// and serves them on the data plane; programs make their variables there themselves. Knows nothing
// of gRPC.
//
// Fences: a command of an older epoch, or of an older view of its job, is refused with kAborted; a
// repeat of the same view answers as the first did, and changes nothing.
//
// Threading: any thread. Execute() may take as long as a checkpoint does; what concerns one job
// must come one after another (but DropJob, which waits for nothing).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "ps/apply_pool.h"
#include "ps/job_shards.h"
#include "ps/server/ps_server.h"

namespace muster::v1 {
class AdoptReport;
class AdoptVariables;
class Command;
class CommandResult;
class DropJob;
class Heartbeat;
class Register;
class CreateVariables;
class DataEndpoint;
class JobPlan;
class PsReport;
class SaveReport;
class SaveVariables;
}  // namespace muster::v1

namespace muster::services {

class PsNode {
 public:
  struct Options {
    ps::PsServer::Options server;
    // This task's index: which shards of a plan are ours.
    std::uint32_t index = 0;
    // Threads that help with large applies, besides those that serve connections.
    int apply_helpers = 1;
  };

  // Errors of PsServer::Start.
  static Result<std::unique_ptr<PsNode>> Start(Options options);
  // So many of the jobs that were dropped last are remembered: a command that a drop has overtaken
  // comes a moment later, not thousands of jobs later.
  static constexpr std::size_t kMostDropped = 4'096;
  ~PsNode();
  PsNode(const PsNode&) = delete;
  PsNode& operator=(const PsNode&) = delete;

  v1::DataEndpoint endpoint() const;
  // This process's: a plan that was made for another one is refused from now on (kAborted). Before
  // the first command.
  void set_boot_id(std::string boot_id) { boot_id_ = std::move(boot_id); }
  // Says which jobs' shards, and which programs' variables, are here.
  void FillRegistration(v1::Register& registration) const;
  // Says how much memory each job's variables take here.
  void FillHeartbeat(v1::Heartbeat& heartbeat) const;
  // The coordinator is at this epoch: programs of earlier ones are over, their variables are freed.
  //   kAborted: it has been at a later one.
  Status BeginEpoch(Epoch epoch);
  // What each job whose shards are here does, by id; nothing of single shards, whose updates this
  // does not wait for.
  std::map<std::string, v1::PsReport> Totals() const;
  // The same of programs, which make their variables themselves.
  std::vector<ps::ProgramUse> Programs() const { return server_->programs(); }
  // Answers a command for a parameter server; the result carries the command's id.
  // kInvalidArgument: a command for another kind of task.
  v1::CommandResult Execute(const v1::Command& command);
  void Stop();

 private:
  struct Job {
    JobNumber number;
    Epoch epoch;
    ViewId view;
    std::shared_ptr<ps::JobShards> shards;  // null: creating them failed
    Status created;
    // What values and slots take.
    std::uint64_t bytes = 0;
  };

  explicit PsNode(Options options);
  Status Create(const v1::CreateVariables& command);
  // Takes the place of the older view. No status: the shards are to be made now.
  std::optional<Status> Begin(const v1::JobPlan& plan);
  Result<v1::SaveReport> Save(const v1::SaveVariables& command);
  Result<v1::AdoptReport> Adopt(const v1::AdoptVariables& command);
  Result<v1::PsReport> Report(const std::string& job_id) const;
  void AddCounters(JobNumber job, v1::PsReport& report) const;
  Status Drop(const v1::DropJob& command);
  // Remembers it as dropped, and the oldest such job no more.
  void Forget(const std::string& job_id, ViewId view) MUSTER_REQUIRES(mutex_);
  // kAborted: this server has obeyed a later one.
  Status Obey(Epoch epoch) MUSTER_REQUIRES(mutex_);
  Result<Job> Find(const std::string& job_id) const MUSTER_REQUIRES(mutex_);

  const std::uint32_t index_;
  std::string boot_id_;
  // Declared first: shards use it until they are gone.
  ps::ApplyPool pool_;
  std::unique_ptr<ps::PsServer> server_;
  mutable Mutex mutex_;
  Epoch epoch_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, Job> jobs_ MUSTER_GUARDED_BY(mutex_);
  // Those that were dropped, the oldest first; some have come back in a later view.
  std::deque<std::pair<std::string, ViewId>> dropped_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::services
