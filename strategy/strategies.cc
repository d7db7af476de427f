#include <set>

#include "strategy/central_storage_strategy.h"
#include "strategy/cross_device_ops.h"
#include "strategy/internal/raise.h"
#include "strategy/mirrored_strategy.h"
#include "strategy/one_device_strategy.h"
#include "worker/engine/device/device.h"

namespace muster {
namespace {

int CpuIndex(const std::string& name) {
  const Result<device::Device> parsed = device::ParseDevice(name);
  if (!parsed.ok()) raise(parsed.status());
  if (parsed->type != device::Device::Type::kCpu) {
    raise(Unimplemented("device {}: this build computes on logical CPU devices only", name));
  }
  return parsed->index;
}

std::vector<int> CpuIndices(const std::vector<std::string>& names) {
  if (names.empty()) return {0};
  std::vector<int> indices;
  std::set<int> seen;
  for (const std::string& name : names) {
    indices.push_back(CpuIndex(name));
    if (!seen.insert(indices.back()).second) {
      raise(InvalidArgument("device {} is named twice", name));
    }
  }
  return indices;
}

int ParameterIndex(const std::vector<int>& compute, const std::optional<std::string>& named) {
  if (named.has_value()) return CpuIndex(*named);
  return compute.size() == 1 ? compute[0] : 0;
}

}  // namespace

OneDeviceStrategy::OneDeviceStrategy(const std::string& device)
    : Strategy({CpuIndex(device)}, {CpuIndex(device)}) {}

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices,
                                   std::shared_ptr<CrossDeviceOps> cross_device_ops)
    : Strategy(CpuIndices(devices), CpuIndices(devices),
               cross_device_ops != nullptr ? std::move(cross_device_ops)
                                           : mirrored_cross_device_ops(devices)) {}

CentralStorageStrategy::CentralStorageStrategy(const std::vector<std::string>& compute_devices,
                                               const std::optional<std::string>& parameter_device)
    : Strategy(CpuIndices(compute_devices),
               {ParameterIndex(CpuIndices(compute_devices), parameter_device)}) {}

}  // namespace muster
