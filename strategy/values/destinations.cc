#include "strategy/values/destinations.h"

#include <algorithm>

#include "device/cpu_allocator.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/values/device_of.h"

namespace muster {

Destinations::Destinations(const std::vector<std::string>& devices) {
  // Whoever names a device may be about to use it, before there is any strategy.
  device::InstallCpuAllocator();
  if (devices.empty()) raise(InvalidArgument("destinations can not be empty"));
  for (const std::string& name : devices) {
    const Result<device::Place> parsed = device::ParsePlace(name);
    if (!parsed.ok()) {
      raise(
          InvalidArgument("destinations must be one of: device names, a distributed value, a "
                          "variable; {}",
                          Message(parsed.status())));
    }
    const device::Place place = value_of(device::FindPlace(name));
    if (std::find(places_.begin(), places_.end(), place) != places_.end()) continue;
    devices_.push_back(parsed->Canonical());
    places_.push_back(place);
  }
}

std::vector<std::string> Destinations::devices_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<std::string> names;
  for (const torch::Tensor& tensor : tensors) names.push_back(muster::device_of(tensor));
  return names;
}

}  // namespace muster
