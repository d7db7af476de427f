// Shapes as error messages show them.
#pragma once

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strategy/base/torch.h"

namespace muster {

// "[3, 4]"; a scalar's is "[]".
inline std::string ShapeText(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes.begin(), sizes.end(), ", "));
}
inline std::string ShapeText(const torch::Tensor& tensor) { return ShapeText(tensor.sizes()); }

}  // namespace muster
