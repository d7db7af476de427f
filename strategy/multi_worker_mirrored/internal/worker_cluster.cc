#include "strategy/multi_worker_mirrored/internal/worker_cluster.h"

#include <fmt/format.h>

#include "common/cluster/roles.h"
#include "strategy/base/internal/raise.h"

namespace muster::internal {

WorkerCluster worker_cluster(ClusterResolver& resolver) {
  WorkerCluster mine;
  const ClusterSpec named = resolver.cluster_spec();
  if (!named) return mine;
  const auto spec = value_of(cluster::ClusterSpec::Create(named.as_map()));
  const std::optional<std::string> type = resolver.task_type();
  const std::optional<int> id = resolver.task_id();
  if (!type.has_value() || type->empty() || !id.has_value()) {
    raise(InvalidArgument(
        "a cluster was given ({}), so you must also specify task_type and task_id: in TF_CONFIG "
        "\"task\": {{\"type\": \"worker\", \"index\": 0}}",
        spec.ToString()));
  }
  if (!spec.HasJob("worker") && !spec.HasJob("chief") && !spec.HasJob("evaluator")) {
    raise(InvalidArgument("{} has no worker, chief or evaluator: nobody trains in it",
                          spec.ToString()));
  }
  const TaskId task{*type, *id};
  raise_unless_ok(cluster::ValidateRoles(spec, task));
  mine.task_type = *type;
  mine.task_id = *id;
  mine.chief = value_of(cluster::IsChief(spec, task));
  if (*type == "evaluator") return mine;
  (void)value_of(cluster::WorkerCount(spec, *type));  // not for a parameter server
  for (const char* const job : {"chief", "worker"}) {
    const auto tasks = spec.jobs().find(job);
    if (tasks == spec.jobs().end()) continue;
    for (const auto& [index, address] : tasks->second) {
      if (*type == job && *id == index) mine.rank = static_cast<int>(mine.members.size());
      mine.members.push_back({.task = fmt::format("{}:{}", job, index), .address = address});
    }
  }
  if (mine.members.size() == 1) mine.members.clear();
  return mine;
}

}  // namespace muster::internal
