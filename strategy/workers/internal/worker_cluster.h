// Which workers train together, and which of them this process is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/elastic/elastic_groups.h"
#include "collectives/process/form_group.h"
#include "common/base/environment.h"
#include "common/base/status.h"
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
  // In an elastic job that Muster has launched, the file that says who is there
  // (common/cluster/worker_book.h). `members` are all places then, `rank` this worker's; vacant
  // ones have no address. Empty: the members stay as they are.
  std::string book = {};
  std::string job = {};
  // How many may, and have to, be there at once.
  int most = 1;
  int least = 1;
};

// INVALID_ARGUMENT: no task, one that the cluster does not have or that does not train, a cluster
// without workers, or one that cannot be (two chiefs, two workers at one address, one at none).
WorkerCluster worker_cluster(ClusterResolver& resolver);

// The same for a process of an elastic job, which the environment tells of; nothing: it is none.
// INVALID_ARGUMENT: what it is told is not sound.
std::optional<WorkerCluster> elastic_job(ClusterResolver& resolver, const Environment& environment);

// Throws `why`. Another process in this one's place would end with it, too, and the daemon that has
// launched this one, if one has, is told so.
[[noreturn]] void refuse_for_good(const Status& why, const Environment& environment);

// Whose devices a strategy has that names none: the workers' of TF_CONFIG, where this process is
// one of several. Nothing: its own alone. So it is without a cluster, on an evaluator, where there
// are parameter servers, and in the processes of a program with closures.
//   FAILED_PRECONDITION: in an elastic job, whose workers come and go. INVALID_ARGUMENT: as above,
//   and what TFConfigClusterResolver says.
std::optional<WorkerCluster> workers_in_step(ClusterResolver& resolver,
                                             const Environment& environment);

// Where the workers of an elastic job are now, by place.
Result<collectives::WorkersNow> workers_now(const WorkerCluster& cluster);

}  // namespace muster::internal
