#include "strategy/device_of.h"

#include "worker/engine/device/arena.h"
#include "worker/engine/device/device.h"

namespace muster {

std::string device_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return device::Device{}.Canonical();
  if (tensor.is_sparse()) return muster::device_of(tensor._values());
  const bool on_cpu = tensor.device().is_cpu();
  // The storage's address: an empty tensor has none of its own.
  const int index = on_cpu ? device::Arena::IndexOf(tensor.storage().data_ptr().get())
                           : static_cast<int>(tensor.get_device());
  return device::Device{on_cpu ? device::Device::Type::kCpu : device::Device::Type::kGpu, index}
      .Canonical();
}

}  // namespace muster
