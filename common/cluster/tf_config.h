// TF_CONFIG: how operators and launchers tell a process which task of which cluster it is.
//
//   {"cluster": {"ps": ["h:1", "h:2"], "worker": {"3": "h:3"}}, "task": {"type": "ps", "index": 0},
//    "rpc_layer": "grpc", "session_master": ".."}
//
// "sparseCluster" stands for "cluster" (written by Kubeflow's dynamic workers for a while, see
// kubeflow/trainer#1763). Other keys ("environment") are for others and are passed over.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/cluster/cluster_spec.h"

namespace muster::cluster {

// The text taken apart, with nothing required and addresses of any form.
struct TfConfig {
  ClusterSpec cluster;
  std::optional<std::string> task_type;
  std::optional<int> task_index;
  std::optional<std::string> rpc_layer;
  std::optional<std::string> session_master;
};

//   kInvalidArgument: not JSON, or a part of the wrong form; the message says which.
[[nodiscard]] Result<TfConfig> ParseTfConfig(std::string_view text);

// What a daemon needs to know of itself and its coordinator.
struct TaskConfig {
  ClusterSpec cluster;
  TaskId task;
  // host:port of this task; empty for an evaluator that the cluster does not list.
  std::string address;
  // host:port of the chief; empty where the cluster has none.
  std::string coordinator;

  // The cluster without the evaluator, which takes no part in training.
  [[nodiscard]] ClusterSpec TrainingCluster() const { return cluster.Without("evaluator"); }
};

// As ParseTfConfig, and held to what a cluster of ours must be. `told`: the task of a process that
// was told so in another way, where TF_CONFIG names none.
//   kInvalidArgument: no cluster or no task; roles that ValidateRoles refuses (two chiefs, an index
//                     beyond the list, ..); an address that is not host:port with a port in
//                     1..65535; one address for two tasks.
[[nodiscard]] Result<TaskConfig> FromTfConfig(std::string_view text,
                                              const std::optional<TaskId>& told = {});

}  // namespace muster::cluster
