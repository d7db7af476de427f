#include "strategy/values/internal/copies.h"

#include "device/placing.h"

namespace muster::internal {

torch::Tensor copy_to(const torch::Tensor& value, device::Place place) {
  const device::PlaceScope scope(place);
  const torch::Device to = device::TorchDevice(place);
  if (device::SameDevice(value.device(), to)) return device::Placed(value.clone(), place);
  return device::Placed(value.to(to, value.scalar_type(), /*non_blocking=*/false, /*copy=*/true),
                        place);
}

IndexedSlices copy_to(const IndexedSlices& value, device::Place place) {
  return {copy_to(value.values, place), copy_to(value.indices, place), value.dense_shape};
}

torch::Tensor here(const torch::Tensor& value) {
  const torch::Device to = device::TorchDevice(device::PlaceScope::Current());
  return device::SameDevice(value.device(), to) ? value : value.to(to, value.scalar_type());
}

}  // namespace muster::internal
