// What the tasks of a cluster are to each other: who is chief, who counts as a worker.
//
// Jobs are chief, worker, ps and evaluator. An evaluator stands outside the training cluster and
// need not be in the spec. A task of type "" is "no task": the cluster alone is looked at.
#pragma once

#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/cluster/cluster_spec.h"

namespace muster::cluster {

// Whether the cluster has only the roles it may have and `task` is one of its tasks.
//   kInvalidArgument: a job of another name, more than one chief or evaluator, a task of another
//                     type, of a job that is not there, or with an index that is not there.
[[nodiscard]] Status ValidateRoles(const ClusterSpec& spec, const TaskId& task);

// The rest is asked by programs that run on every task of a cluster, which jobs do not: for the
// strategy of several workers, and the chief among them. They return what ValidateRoles refuses,
// and kInvalidArgument for a type that has no answer.

// chief and evaluator are; worker:0 is where there is no chief job.
[[nodiscard]] Result<bool> IsChief(const ClusterSpec& spec, const TaskId& task);
// For chief and worker: how many both are together; for evaluator: how many of them. Not for ps.
[[nodiscard]] Result<int> WorkerCount(const ClusterSpec& spec, const std::string& task_type);
// The chief is 0 and the workers follow it, in the order of their indexes; an evaluator keeps its
// own index. Not for ps.
[[nodiscard]] Result<int> IdInCluster(const ClusterSpec& spec, const TaskId& task);

// Who runs the coordination service: ps:0, without ps chief:0, without chief worker:0. Nothing for
// a cluster that has none of them. Muster itself does not ask, since its coordinator is a daemon of
// its own: the acceptance list does (CSP-16).
[[nodiscard]] std::optional<TaskId> CoordinationLeader(const ClusterSpec& spec);

}  // namespace muster::cluster
