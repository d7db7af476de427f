// This process's way to the parameter servers of its program: the driver's, who makes variables
// there, or an executor's, which the driver has told where they are.
//
// Threading: any thread. Lifetime: who uses it keeps it; the driver's ends when its strategies and
// variables have.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/partition/placer.h"
#include "ps/client/program_client.h"
#include "strategy/base/closure_error.h"
#include "strategy/cluster/internal/cluster_link.h"
#include "strategy/parameter_server/consistency.h"
#include "strategy/parameter_server/internal/dropped_variables.h"

namespace muster::internal {

// Where the servers are, and what proves that one may use them.
struct PsAccess {
  std::vector<ps::ProgramClient::Server> servers = {};
  std::string job_id = {};
  std::string key = {};
  Epoch epoch{};
  // That of the driver whose variables they are.
  Incarnation incarnation{};
  std::string host_id = {};
  ps::LinkMode link = ps::LinkMode::kAuto;
  // For connections over TCP; null: in the clear.
  std::shared_ptr<tls::KeyContext> tls = nullptr;
};

class PsConnection : public std::enable_shared_from_this<PsConnection> {
 public:
  // The one that this process has now; null: none.
  static std::shared_ptr<PsConnection> Current();
  // Becomes the driver's, of whose executors `link` is: tells them where the servers are, and the
  // servers how far closures have settled.
  //   PsUnavailable: a server does not answer.  INVALID_ARGUMENT: there is none.
  static std::shared_ptr<PsConnection> OpenAsDriver(const PsAccess& access,
                                                    std::shared_ptr<ClusterLink> link);
  // Becomes an executor's, unless it is of the same driver already; connects when it is first used.
  //   INVALID_ARGUMENT (thrown): this process was told of a link of another name.
  static void BecomeExecutor(PsAccess access);
  ~PsConnection();

  // Connects, if nobody has. PsUnavailable: a server does not answer.
  ps::ProgramClient& client();
  // The driver's: how far closures of steps may run ahead of each other, and how many of them may
  // be executed a second time at once.
  //   FAILED_PRECONDITION (thrown): there is another rule.
  void SetSteps(const StepRule& rule, std::uint32_t second_runs);
  bool driver() const { return link_ != nullptr; }
  const std::string& job_id() const { return access_.job_id; }
  // For messages, and unlike any other job's or driver's: "job-7 (driver 2 of epoch 1)".
  std::string job() const;

  // A variable by its name; null: the driver has not made it.
  ps::VariableHandle Find(const std::string& name);
  // Where a variable's shards go: on `colocated` (one for each shard), or by `placement`.
  struct Place {
    std::vector<std::uint32_t> colocated = {};
    Placement placement = Placement::kRoundRobin;
  };
  // The driver's: makes a variable, whose shards' values are asked for one after the other.
  //   ALREADY_EXISTS: the name.  RESOURCE_EXHAUSTED: no memory.  INVALID_ARGUMENT: a type that
  //   servers do not have.
  ps::VariableHandle Create(const std::string& name, DType dtype,
                            const std::vector<std::int64_t>& sizes, std::int64_t shards,
                            Place place, ps::ShardValues values);
  // Frees it: at once, or when its servers are back; before another one gets its name, in any case.
  void Delete(const ps::VariableHandle& variable);

  // Throws what a client's call has come to: PsUnavailable where a server is lost; a ClosureError,
  // which sends a closure round again, where a server has no room now, or an executor knew a
  // variable that has been deleted.
  [[noreturn]] void Raise(const Status& status, ClosurePhase phase);
  void RaiseUnlessOk(const Status& status, ClosurePhase phase = ClosurePhase::kRun) {
    if (!status.ok()) Raise(status, phase);
  }

 private:
  PsConnection(PsAccess access, std::shared_ptr<ClusterLink> link)
      : access_(std::move(access)),
        link_(std::move(link)),
        placer_(static_cast<std::uint32_t>(access_.servers.size())) {}
  // What each of its shards takes; and the server `index` as the placer counts them.
  static std::vector<std::uint64_t> ShardBytes(DType dtype, const std::vector<std::int64_t>& sizes,
                                               std::int64_t shards);
  std::uint32_t PlaceOf(std::uint32_t index) const;
  bool IsAwayNow(const ps::VariableInfo& variable);
  bool IsAnyAwayNow();
  void NoteAway(const Status& from_server);
  // False: a server did not answer.
  bool DeleteNow(const ps::VariableHandle& variable);
  // Deletes what is left of that: all whose servers are not away, or what has this name. With all,
  // also what servers may have of variables that could not be made.
  void DeleteDropped(const std::string& name = "");
  void TellExecutors();
  void WatchSettled();
  // Workers whose strategies have other numbers of replicas than those of the first one are the
  // program's error (ClusterLink::Refuse), once they have said so.
  void CompareReplicas();

  const PsAccess access_;
  // The driver's.
  const std::shared_ptr<ClusterLink> link_;
  ClosureId told_{};  // the per-worker value that tells executors

  Mutex mutex_;
  Condition stop_changed_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ps::ProgramClient> client_ MUSTER_GUARDED_BY(mutex_);
  partition::Placer placer_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, ps::VariableHandle> found_ MUSTER_GUARDED_BY(mutex_);
  // Servers that did not answer, by task: until then nothing waits for them that need not.
  std::map<std::string, TimePoint> away_ MUSTER_GUARDED_BY(mutex_);
  DroppedVariables dropped_;
  // The thread's: who was first, and what it has said; how many were compared, and when.
  std::string first_;
  std::vector<std::int32_t> replicas_;
  std::size_t compared_ = 0;
  TimePoint compared_at_;
  std::thread settled_;
};

}  // namespace muster::internal
