// Elements as rows of one another: stacking, slicing and joining along the first dimension.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/data/element.h"

namespace muster::data {

// The name of the only column of an element that is one value.
inline constexpr const char* kValueColumn = "value";

template <class T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::kUint8;
  if constexpr (std::is_same_v<T, std::int8_t>) return DType::kInt8;
  if constexpr (std::is_same_v<T, std::int16_t>) return DType::kInt16;
  if constexpr (std::is_same_v<T, std::string>) return DType::kString;
  return DType::kUnspecified;
}

// A column that owns `values`, which fill `shape`. A column of strings points to std::string.
template <class T>
Column MakeColumn(std::string name, std::vector<std::int64_t> shape, std::vector<T> values) {
  static_assert(DTypeOf<T>() != DType::kUnspecified);
  auto owner = std::make_shared<const std::vector<T>>(std::move(values));
  const auto* const data = reinterpret_cast<const std::byte*>(owner->data());
  return {.info = {.name = std::move(name), .dtype = DTypeOf<T>(), .shape = std::move(shape)},
          .owner = std::move(owner),
          .data = data};
}
template <class T>
Element Scalar(T value) {
  return {.columns = {MakeColumn<T>(kValueColumn, {}, std::vector<T>{std::move(value)})}};
}

// Bytes of one value in memory, those of the std::string for strings.
constexpr std::size_t Stride(DType dtype) {
  return dtype == DType::kString ? sizeof(std::string) : SizeOf(dtype);
}

// "value float32 [2, 3]"
std::string ToText(const ColumnInfo& info);

// Size of the first dimension of all columns.
//   kInvalidArgument: a column is a single value ("Call the batch method ..."), sizes differ.
Result<std::int64_t> Rows(const Element& element);
// Rows begin..end-1, a view.
Element SliceRows(const Element& element, std::int64_t begin, std::int64_t end);
// One row, without the first dimension; a view.
Element Row(const Element& element, std::int64_t row);
// A copy in memory of its own.
Result<Element> Copy(const Element& element);

// Equal elements become the rows of one.
//   kInvalidArgument: columns, types or shapes differ (both named).
Result<Element> Stack(std::span<const Element> elements);
// Joined along the first dimension. One element is passed on as it is.
//   As Stack.
Result<Element> JoinRows(std::span<const Element> elements);
// No rows, of these columns; sizes that are not known become 0.
Element EmptyRows(const std::vector<ColumnInfo>& columns);

}  // namespace muster::data
