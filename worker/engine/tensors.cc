#include "worker/engine/tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace muster::engine {

at::Tensor View(const data::Column& column) {
  const auto type = ScalarTypeOf(column.info.dtype);
  TORCH_CHECK(type, "column \"", column.info.name, "\" holds strings");
  return at::from_blob(const_cast<std::byte*>(column.data), column.info.shape,
                       at::TensorOptions(*type));
}

std::string Describe(const at::Tensor& tensor) {
  const DType dtype = DTypeOf(tensor.scalar_type());
  const std::string_view name = dtype == DType::kUnspecified
                                    ? std::string_view(c10::toString(tensor.scalar_type()))
                                    : NameOf(dtype);
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
