// Muster's element types as libtorch's: the one table, for the engine and for strategies.
#pragma once

#include <optional>
#include <utility>

#include "common/base/dtype.h"
#include "common/torch/torch_macros_begin.inc"
//
#include <c10/core/ScalarType.h>
//
#include "common/torch/torch_macros_end.inc"

namespace muster {

inline constexpr std::pair<DType, c10::ScalarType> kScalarTypes[] = {
    {DType::kFloat32, c10::ScalarType::Float},     {DType::kFloat64, c10::ScalarType::Double},
    {DType::kInt32, c10::ScalarType::Int},         {DType::kInt64, c10::ScalarType::Long},
    {DType::kUint8, c10::ScalarType::Byte},        {DType::kBool, c10::ScalarType::Bool},
    {DType::kFloat16, c10::ScalarType::Half},      {DType::kInt8, c10::ScalarType::Char},
    {DType::kBfloat16, c10::ScalarType::BFloat16}, {DType::kInt16, c10::ScalarType::Short}};

// Nothing for strings and for no type.
[[nodiscard]] constexpr std::optional<c10::ScalarType> ScalarTypeOf(DType dtype) {
  for (const auto& [ours, theirs] : kScalarTypes) {
    if (ours == dtype) return theirs;
  }
  return std::nullopt;
}

// kUnspecified for a type that Muster has no name for (complex and quantised ones).
[[nodiscard]] constexpr DType DTypeOf(c10::ScalarType type) {
  for (const auto& [ours, theirs] : kScalarTypes) {
    if (theirs == type) return ours;
  }
  return DType::kUnspecified;
}

}  // namespace muster
