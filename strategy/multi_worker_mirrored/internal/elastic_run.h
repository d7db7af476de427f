// The loop of run_elastic() on one worker: groups, steps, votes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "collectives/elastic/elastic_groups.h"
#include "strategy/multi_worker_mirrored/elastic.h"
#include "strategy/multi_worker_mirrored/internal/elastic_state.h"
#include "strategy/workers/internal/worker_cluster.h"
#include "strategy/workers/internal/worker_group.h"

namespace muster::internal {

// Threading: one thread. Lifetime: what the constructor is given outlives it.
class ElasticRun {
 public:
  struct Membership {
    const WorkerCluster& cluster;
    GroupSecret secret;
    std::chrono::milliseconds call_within;
    // Tells the strategy whose processes its replicas are in; null: this one alone.
    std::function<void(std::shared_ptr<collectives::Group>)> regroup;
    // Tells it that this process has left them.
    std::function<void()> left;
    // As in collectives::GroupSpec.
    std::string wait_page;
    std::optional<collectives::LinkCosts> costs;
  };
  // INVALID_ARGUMENT: options that cannot be.
  ElasticRun(Membership membership, TrackedValues tracked, std::uint64_t first_step,
             const ElasticOptions& options);
  ~ElasticRun();

  using Step = std::function<void(std::uint64_t number, int worker, int workers)>;
  // Until the last step counts. The last step's number.
  std::uint64_t Run(const Step& step);
  ElasticState& state() { return state_; }

 private:
  // Becomes a member of the next group, with the state of the last step that counts.
  void Join();
  // One attempt at the next step. False: the group is over, or lets others in.
  bool Try(const Step& step);
  // All have come to the end of `step`; true: and one more worker is to be let in.
  bool Commit(std::uint64_t step);
  // Whether what is thrown here and now is the end of the group, which a next one follows.
  bool GroupOver() const;
  void Leave();

  const Membership membership_;
  const ElasticOptions options_;
  ElasticState state_;
  std::unique_ptr<collectives::ElasticGroups> groups_;
  std::shared_ptr<collectives::Group> group_;  // null: alone, or none
  std::shared_ptr<WorkerGroup> workers_;       // behind group_'s queue
  int rank_ = 0;
  // A step has begun since the values were kept.
  bool changed_ = false;
};

}  // namespace muster::internal
