// Tensors as the memory that they stand for.
#pragma once

#include "strategy/base/torch.h"

namespace muster::internal {

// `value` contiguous, with what it shows in its memory: itself, where it is so already. A conjugate
// or negative view, z.conj() or imag(z.conj()), lies there as what it is a view of, and
// contiguous() alone leaves it so: whoever reads its bytes would get those of the other value.
inline torch::Tensor plain_of(const torch::Tensor& value) {
  return value.resolve_conj().resolve_neg().contiguous();
}

}  // namespace muster::internal
