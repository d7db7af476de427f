#include "strategy/values/device_of.h"

#include "device/placing.h"

namespace muster {

std::string DeviceOf::operator()(const torch::Tensor& tensor) const {
  return device::PlaceOf(tensor).Canonical();
}

}  // namespace muster
