#include "strategy/values/device_of.h"

#include "device/place.h"

namespace muster {

std::string DeviceOf::operator()(const torch::Tensor& tensor) const {
  return device::DeviceAt(device::PlaceOf(tensor)).Canonical();
}

}  // namespace muster
