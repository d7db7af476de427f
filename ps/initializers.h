// Initial values. Element i of a variable depends on the seed, the variable's name and i alone:
// neither on how the variable is split nor on threads.
//
// Threading: free functions, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/status.h"

namespace muster::v1 {
class VariableLayout;
}

namespace muster::ps {

// Philox4x32-10 of Salmon et al. 2011: 128 random bits for each counter under a key.
std::array<std::uint32_t, 4> Philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key);

// How one variable's values are made, its defaults resolved.
class InitialValues {
 public:
  // kInvalidArgument: an unknown kind, or a scale that is negative or no finite float32.
  static Result<InitialValues> Create(const v1::VariableLayout& variable, std::uint64_t seed);

  // The values of elements first, first + 1, ... in row-major order of the whole variable.
  void Fill(std::uint64_t first, std::span<float> into) const;
  // All values are +0, so fresh memory will do.
  bool zero() const { return kind_ == Kind::kConstant && scale_ == 0; }

 private:
  enum class Kind { kConstant, kUniform, kNormal, kTruncatedNormal };

  Kind kind_ = Kind::kConstant;
  // Constant: the value. Uniform: half the width. Else the standard deviation.
  float scale_ = 0;
  std::array<std::uint32_t, 2> key_{};
};

}  // namespace muster::ps
