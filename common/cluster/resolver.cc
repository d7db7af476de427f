#include "common/cluster/resolver.h"

#include "common/cluster/device_name.h"

namespace muster::cluster {

Status CheckPort(int port) {
  if (port >= 1 && port <= 65535) return Ok();
  return InvalidArgument("port {} is out of range; 1 to 65535 is allowed", port);
}

std::string MasterUrl(const std::string& address, const std::string& rpc_layer) {
  return rpc_layer.empty() || address.empty() ? address : rpc_layer + "://" + address;
}

Result<std::string> ClusterResolver::Master(const ClusterTask& choice) {
  std::optional<std::string> type = choice.task_type;
  std::optional<int> id = choice.task_id;
  std::optional<std::string> rpc_layer = choice.rpc_layer;
  if (!type) {
    MUSTER_TRY_ASSIGN(type, TaskType());
  }
  if (!id) {
    MUSTER_TRY_ASSIGN(id, TaskId());
  }
  if (!rpc_layer) {
    MUSTER_TRY_ASSIGN(rpc_layer, RpcLayer());
  }
  if (!type || !id) return std::string();
  MUSTER_TRY_ASSIGN(const ClusterSpec spec, Cluster());
  MUSTER_TRY_ASSIGN(const std::string address, spec.TaskAddress(*type, *id));
  return MasterUrl(address, rpc_layer.value_or(""));
}

Result<std::optional<std::string>> ClusterResolver::TaskType() { return own_.task_type; }
Result<std::optional<int>> ClusterResolver::TaskId() { return own_.task_id; }
Result<std::optional<std::string>> ClusterResolver::RpcLayer() { return own_.rpc_layer; }

Status ClusterResolver::SetTaskType(const std::string& type) {
  own_.task_type = type;
  return Ok();
}

Status ClusterResolver::SetTaskId(int id) {
  own_.task_id = id;
  return Ok();
}

Status ClusterResolver::SetRpcLayer(const std::string& rpc_layer) {
  own_.rpc_layer = rpc_layer;
  return Ok();
}

Result<std::vector<std::string>> ClusterResolver::ListDevices(const std::string& master) {
  if (devices_ == nullptr) {
    return FailedPrecondition("this resolver was given no way of listing devices");
  }
  return devices_->ListDevices(master);
}

Result<AcceleratorCounts> ClusterResolver::NumAccelerators(const ClusterTask& choice) {
  MUSTER_TRY_ASSIGN(const std::string master, Master(choice));
  MUSTER_TRY_ASSIGN(const std::optional<std::string> own_type, TaskType());
  MUSTER_TRY_ASSIGN(const std::optional<int> own_id, TaskId());
  const std::optional<std::string> type = choice.task_type ? choice.task_type : own_type;
  const std::optional<int> id = choice.task_id ? choice.task_id : own_id;
  const bool self = type == own_type && id == own_id;
  MUSTER_TRY_ASSIGN(const std::vector<std::string> names, ListDevices(master));
  AcceleratorCounts counts;
  for (const std::string& name : names) {
    MUSTER_TRY_ASSIGN(const DeviceName device, DeviceName::Parse(name));
    if (!device.type || *device.type == "CPU") continue;
    // Without a master they are this process's, which calls them localhost's whatever its task is.
    const bool own = self && master.empty() && device.job == "localhost";
    if (type && id && !own && (device.job != type || device.task != id)) continue;
    ++counts[*device.type];
  }
  return counts;
}

}  // namespace muster::cluster
