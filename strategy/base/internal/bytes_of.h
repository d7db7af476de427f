// The bytes of a tensor, where they lie.
#pragma once

#include <cstddef>
#include <span>

#include "strategy/base/torch.h"

namespace muster::internal {

// The tensor is contiguous, on the CPU, and outlives them.
inline std::span<std::byte> BytesOf(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace muster::internal
