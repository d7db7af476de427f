#include "strategy/device_of.h"

#include "worker/engine/device/place.h"

namespace muster {

std::string device_of(const torch::Tensor& tensor) {
  return device::DeviceAt(device::PlaceOf(tensor)).Canonical();
}

}  // namespace muster
