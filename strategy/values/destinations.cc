#include "strategy/values/destinations.h"

#include <algorithm>

#include "device/cpu_allocator.h"
#include "device/place.h"
#include "strategy/base/internal/raise.h"
#include "strategy/values/device_of.h"

namespace muster {

Destinations::Destinations(const std::vector<std::string>& devices) {
  // Whoever names a device may be about to use it, before there is any strategy.
  device::InstallCpuAllocator();
  if (devices.empty()) raise(InvalidArgument("destinations can not be empty"));
  for (const std::string& name : devices) {
    const Result<device::Device> parsed = device::ParseDevice(name);
    if (!parsed.ok()) {
      raise(
          InvalidArgument("destinations must be one of: device names, a distributed value, a "
                          "variable; {}",
                          Message(parsed.status())));
    }
    const int place = value_of(device::FindPlace(name));
    if (std::find(indices_.begin(), indices_.end(), place) != indices_.end()) continue;
    devices_.push_back(parsed->Canonical());
    indices_.push_back(place);
  }
}

std::vector<std::string> Destinations::devices_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<std::string> names;
  for (const torch::Tensor& tensor : tensors) names.push_back(muster::device_of(tensor));
  return names;
}

}  // namespace muster
