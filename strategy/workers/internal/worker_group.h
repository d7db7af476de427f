// The group of the workers of a strategy.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "collectives/cost_model.h"
#include "collectives/group.h"
#include "common/base/environment.h"
#include "common/base/mutex.h"
#include "common/tls/key_context.h"
#include "strategy/workers/internal/worker_cluster.h"

namespace muster::internal {

// A group of processes for callers on several threads: one call at a time, each with a deadline,
// which is never later than that of the strategy (call_within). A queue of started calls stands
// before it (collectives/queued_group.h).
// Threading: any thread. Which call of two threads comes first must be the same on all workers,
// else both are errors.
class WorkerGroup final : public collectives::Group {
 public:
  // How the others take an error that one of them ends the group with: as their own, or as its loss
  // (ABORTED), without it they go on.
  enum class Abandoned { kAll, kOne };
  WorkerGroup(std::unique_ptr<collectives::Group> group, std::chrono::milliseconds call_within,
              Abandoned abandoned = Abandoned::kAll)
      : abandoned_(abandoned),
        call_within_(call_within),
        rank_(group->rank()),
        size_(group->size()),
        group_(std::move(group)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name_of(int member) const override { return group_->name_of(member); }
  Status AllReduce(collectives::Reduction reduction,
                   std::span<const collectives::ReduceBuffer> buffers,
                   collectives::Timeout timeout = {}) override;
  Result<std::vector<std::vector<std::int64_t>>> Exchange(
      std::string_view call, std::span<const std::int64_t> mine,
      collectives::Timeout timeout = {}) override;
  Status AllGather(std::span<const collectives::GatherBuffer> buffers,
                   collectives::Timeout timeout = {}) override;
  Status Broadcast(std::span<std::byte> data, int root, collectives::Timeout timeout = {}) override;
  Status ReduceScatter(collectives::Reduction reduction, const collectives::ScatterBuffer& buffer,
                       collectives::Timeout timeout = {}) override;
  Status AllToAll(std::span<const std::span<const std::byte>> sends,
                  std::span<const std::span<std::byte>> receives,
                  collectives::Timeout timeout = {}) override;
  Status Barrier(collectives::Timeout timeout = {}) override;
  Result<std::shared_ptr<std::byte>> AllocateCommon(std::size_t bytes,
                                                    collectives::Timeout timeout = {}) override;
  Status Health() const override { return group_->Health(); }
  // While another thread's call waits, too.
  void Abort(const Status& why) override {
    group_->Abort(abandoned_ == Abandoned::kAll
                      ? why
                      : Aborted("{} has failed: {}", name_of(rank_), Message(why)));
  }

  // The first error of a call; after it the group is over.
  Status failure() const {
    const MutexLock lock(mutex_);
    return failure_;
  }

 private:
  Status Noted(const Status& status) MUSTER_REQUIRES(mutex_) {
    if (failure_.ok()) failure_ = status;
    return status;
  }
  collectives::Timeout Within(collectives::Timeout timeout) const {
    return timeout && timeout->count() > 0 ? std::min(*timeout, call_within_) : call_within_;
  }

  const Abandoned abandoned_;
  const std::chrono::milliseconds call_within_;
  const int rank_;
  const int size_;
  mutable Mutex mutex_;  // held by the call that goes on
  Status failure_ MUSTER_GUARDED_BY(mutex_);
  const std::unique_ptr<collectives::Group> group_;
};

// What workers prove to each other, and whether links between hosts are encrypted by it.
struct GroupSecret {
  std::string key;
  std::shared_ptr<tls::KeyContext> tls;  // null: they are in the clear
  bool of_addresses = false;             // made of the workers' addresses
};

// By `given`, else by the key that a launched process is told (common/cluster/job_key.h), else
// one made of the workers' addresses, which keeps out who comes by mistake and no one else.
GroupSecret secret_of(const WorkerCluster& cluster, const std::string& given,
                      const Environment& environment);

struct JoinOptions {
  // How many this process has; all must have as many.
  int replicas = 1;
  // Given by a process with a card by which its sums may go. Where all give one each calls it with
  // the group that was formed.
  std::function<void(collectives::Group&)> with_cards = nullptr;
  std::optional<std::chrono::milliseconds> within;
  std::chrono::milliseconds call_within{std::chrono::hours(1)};
  GroupSecret secret;
  // As in collectives::GroupSpec.
  std::string wait_page = {};
  std::optional<collectives::LinkCosts> costs = std::nullopt;
};

// The page that the daemon of a launched process gave it; empty: none did.
std::string wait_page_of(const Environment& environment);

// What links cost, by the file that the environment names; none where it names none.
//   The errors of collectives::CostsFrom(), thrown.
std::optional<collectives::LinkCosts> link_costs_of(const Environment& environment);

// Listens at the own address and waits for all members. Null: there are none, this process is
// alone.
//   The errors of MultiWorkerMirroredStrategy's constructor.
std::shared_ptr<collectives::Group> join_workers(const WorkerCluster& cluster,
                                                 const JoinOptions& options);

}  // namespace muster::internal
