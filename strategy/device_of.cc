#include "strategy/device_of.h"

#include "worker/engine/device/place.h"

namespace muster {

std::string DeviceOf::operator()(const torch::Tensor& tensor) const {
  return device::DeviceAt(device::PlaceOf(tensor)).Canonical();
}

}  // namespace muster
