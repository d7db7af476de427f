// How a process finds out which cluster it is part of, whatever runs that cluster.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/cluster/cluster_spec.h"
#include "common/cluster/cluster_task.h"

namespace muster::cluster {

// Asks a cluster which devices it has.
class DeviceLister {
 public:
  virtual ~DeviceLister() = default;
  // Names such as /job:worker/replica:0/task:1/device:GPU:0 of all tasks that the server at
  // `master` knows; an empty master is this process, whose devices may be called localhost's.
  //   kDeadlineExceeded: it does not answer.
  virtual Result<std::vector<std::string>> ListDevices(const std::string& master) = 0;
};

// Where the answers come from differs (the environment, a service, the caller); each call that
// needs an answer from outside asks anew. An empty master means "this process".
//
// Threading: not thread-safe.
// Lifetime: a DeviceLister that was given to a resolver outlives it.
class ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;
  ClusterResolver(const ClusterResolver&) = delete;
  ClusterResolver& operator=(const ClusterResolver&) = delete;

  [[nodiscard]] virtual Result<ClusterSpec> Cluster() = 0;

  // The address of the task that `choice` names, with what it leaves open taken from this resolver.
  //   kInvalidArgument: the cluster has no such task. And whatever Cluster() returns.
  [[nodiscard]] virtual Result<std::string> Master(const ClusterTask& choice = {});

  // Which task this process is; nothing when unknown.
  [[nodiscard]] virtual Result<std::optional<std::string>> TaskType();
  [[nodiscard]] virtual Result<std::optional<int>> TaskId();
  [[nodiscard]] virtual Result<std::optional<std::string>> RpcLayer();

  //   kFailedPrecondition: this kind of resolver does not allow it.
  [[nodiscard]] virtual Status SetTaskType(const std::string& type);
  [[nodiscard]] virtual Status SetTaskId(int id);
  [[nodiscard]] virtual Status SetRpcLayer(const std::string& rpc_layer);

  // "google" or nothing, of old; kept for those who ask.
  [[nodiscard]] virtual std::string EnvironmentName() const { return ""; }

  // The accelerators (devices other than CPU) of the task that `choice` names; of all tasks when
  // the task is open.
  //   kFailedPrecondition: no DeviceLister was given. And whatever it returns.
  [[nodiscard]] virtual Result<AcceleratorCounts> NumAccelerators(const ClusterTask& choice = {});

 protected:
  explicit ClusterResolver(ClusterTask own, DeviceLister* devices = nullptr)
      : own_(std::move(own)), devices_(devices) {}

  [[nodiscard]] Result<std::vector<std::string>> ListDevices(const std::string& master);

  ClusterTask own_;

 private:
  DeviceLister* devices_;
};

// For a port that the caller chooses for all tasks.
//   kInvalidArgument: outside 1..65535.
[[nodiscard]] Status CheckPort(int port);

// "grpc" and "a:1" -> "grpc://a:1". No prefix without a layer, and none for an empty address.
[[nodiscard]] std::string MasterUrl(const std::string& address, const std::string& rpc_layer);

}  // namespace muster::cluster
