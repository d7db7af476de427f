// Rows of a larger tensor: the gradient of a lookup, the argument of a scatter.
//
// Threading: a plain value; its tensors are shared, as tensors are.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strategy/base/torch.h"

namespace muster {

// values[i] belongs to row indices[i]. An index may stand in it more than once: its rows then add
// up. `values` may also be a scalar, where it is the argument of a scatter: it goes to every row.
struct IndexedSlices {
  torch::Tensor values;
  torch::Tensor indices;  // one dimension, int32 or int64
  std::optional<std::vector<std::int64_t>> dense_shape = std::nullopt;
};

}  // namespace muster
