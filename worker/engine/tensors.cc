#include "worker/engine/tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace muster::engine {

std::optional<at::ScalarType> ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt64:
      return at::kLong;
    case DType::kUint8:
      return at::kByte;
    case DType::kBool:
      return at::kBool;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBfloat16:
      return at::kBFloat16;
    case DType::kInt8:
      return at::kChar;
    case DType::kInt16:
      return at::kShort;
    default:
      return std::nullopt;
  }
}

DType DTypeOf(at::ScalarType type) {
  for (int i = static_cast<int>(DType::kFloat32); i < static_cast<int>(DType::kString); ++i) {
    if (ScalarTypeOf(static_cast<DType>(i)) == type) return static_cast<DType>(i);
  }
  return DType::kUnspecified;
}

at::Tensor View(const data::Column& column) {
  const auto type = ScalarTypeOf(column.info.dtype);
  TORCH_CHECK(type, "column \"", column.info.name, "\" holds strings");
  return at::from_blob(const_cast<std::byte*>(column.data), column.info.shape,
                       at::TensorOptions(*type));
}

std::string Describe(const at::Tensor& tensor) {
  static constexpr std::pair<at::ScalarType, const char*> kNames[] = {
      {at::kFloat, "float32"}, {at::kDouble, "float64"},   {at::kInt, "int32"},
      {at::kLong, "int64"},    {at::kByte, "uint8"},       {at::kBool, "bool"},
      {at::kHalf, "float16"},  {at::kBFloat16, "bfloat16"}};
  std::string name = c10::toString(tensor.scalar_type());
  for (const auto& [type, ours] : kNames) {
    if (type == tensor.scalar_type()) name = ours;
  }
  return fmt::format("{} [{}]", name, fmt::join(tensor.sizes().vec(), ", "));
}

std::string Describe(const data::ColumnInfo& column) {
  if (column.dtype == DType::kUnspecified) return "(type and shape as in its file)";
  std::string shape;
  for (std::size_t i = 0; i < column.shape.size(); ++i) {
    if (i != 0) shape += ", ";
    shape += i == 0 ? "batch" : column.shape[i] < 0 ? "?" : std::to_string(column.shape[i]);
  }
  return fmt::format("{} [{}]", NameOf(column.dtype), shape);
}

}  // namespace muster::engine
