// Values brought to a device.
//
// Threading: any thread; functions of their arguments alone.
#pragma once

#include "device/place.h"
#include "strategy/base/torch.h"
#include "strategy/values/indexed_slices.h"

namespace muster::internal {

// A copy that shares nothing with the original. An absent dense_shape stays absent.
torch::Tensor copy_to(const torch::Tensor& value, device::Place place);
IndexedSlices copy_to(const IndexedSlices& value, device::Place place);
// For arithmetic on this thread's device: the value itself where libtorch can use it there (CPU
// devices use each other's memory), else a copy. Differentiable.
torch::Tensor here(const torch::Tensor& value);

}  // namespace muster::internal
