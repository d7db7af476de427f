// Which workers train together, and which of them this process is.
#pragma once

#include <string>
#include <vector>

#include "collectives/process/form_group.h"
#include "strategy/resolver/cluster_resolver.h"

namespace muster::internal {

struct WorkerCluster {
  std::string task_type = "worker";
  int task_id = 0;
  bool chief = true;
  // Who trains in step, the chief first; none: this process alone, as without a cluster or on an
  // evaluator.
  std::vector<collectives::GroupMember> members = {};
  int rank = 0;
};

// INVALID_ARGUMENT: no task, one that the cluster does not have or that does not train, a cluster
// without workers, or one that cannot be (two chiefs).
WorkerCluster worker_cluster(ClusterResolver& resolver);

}  // namespace muster::internal
