#include "strategy/values/sparse.h"

#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/values/destinations.h"
#include "strategy/values/internal/copies.h"
#include "strategy/values/internal/reduction.h"

namespace muster {
namespace {

const std::vector<std::int64_t>& DenseShape(const IndexedSlices& slices) {
  if (!slices.dense_shape.has_value()) {
    raise(InvalidArgument("IndexedSlices without a dense_shape cannot become a whole tensor"));
  }
  return *slices.dense_shape;
}

// What libtorch would refuse in its own words, or on a card not at all.
void CheckRows(const IndexedSlices& slices) {
  const std::vector<std::int64_t>& shape = DenseShape(slices);
  const torch::Tensor& values = slices.values;
  const torch::Tensor& indices = slices.indices;
  if (!values.defined() || !indices.defined()) {
    raise(InvalidArgument("IndexedSlices without {} cannot become a whole tensor",
                          values.defined() ? "indices" : "values"));
  }
  if (indices.dim() != 1 ||
      (indices.scalar_type() != torch::kLong && indices.scalar_type() != torch::kInt)) {
    raise(InvalidArgument(
        "IndexedSlices: indices must be a list of int32 or int64, not {} of shape {}",
        torch::toString(indices.scalar_type()), ShapeText(indices)));
  }
  std::vector<std::int64_t> wanted = shape;
  if (!wanted.empty()) wanted[0] = indices.numel();
  if (wanted.empty() || !values.sizes().equals(wanted)) {
    raise(InvalidArgument(
        "IndexedSlices: {} indices and values of shape {} are no rows of a tensor of shape {}",
        indices.numel(), ShapeText(values), ShapeText(shape)));
  }
  const torch::Tensor list = indices.to(torch::kCPU, torch::kLong).contiguous();
  const auto* const index = list.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < list.numel(); ++i) {
    if (index[i] >= 0 && index[i] < shape[0]) continue;
    raise(InvalidArgument(
        "IndexedSlices: index {} at position {} is not in [0, {}), the rows of a tensor of shape "
        "{}",
        index[i], i, shape[0], ShapeText(shape)));
  }
}

}  // namespace

bool is_slices(const torch::Tensor& tensor) {
  if (!tensor.defined()) return false;
  if (tensor.layout() == torch::kStrided || tensor.layout() == at::kMkldnn) return false;
  if (!tensor.is_sparse()) {
    raise(
        InvalidArgument("a tensor of layout {} cannot be reduced: sparse ones are COO tensors with "
                        "one sparse dimension (IndexedSlices); convert it by to_sparse(1)",
                        fmt::streamed(tensor.layout())));
  }
  if (tensor.sparse_dim() != 1) {
    raise(InvalidArgument(
        "a sparse tensor with {} sparse dimensions cannot be reduced: one stands for rows of a "
        "tensor (IndexedSlices); make the others dense",
        tensor.sparse_dim()));
  }
  return true;
}

IndexedSlices to_slices(const torch::Tensor& sparse) {
  if (!is_slices(sparse)) raise(InvalidArgument("this tensor is dense: it has no slices"));
  return {sparse._values(), sparse._indices()[0], sparse.sizes().vec()};
}

torch::Tensor to_sparse(const IndexedSlices& slices) {
  CheckRows(slices);
  return torch::sparse_coo_tensor(
      slices.indices.to(slices.values.device(), torch::kLong).unsqueeze(0), slices.values,
      DenseShape(slices));
}

torch::Tensor to_dense(const IndexedSlices& slices) {
  CheckRows(slices);
  return torch::zeros(DenseShape(slices), slices.values.options())
      .index_add(0, slices.indices.to(slices.values.device(), torch::kLong), slices.values);
}

torch::Tensor aggregate(const std::vector<torch::Tensor>& values) {
  if (values.empty()) raise(InvalidArgument("aggregate() needs at least one value"));
  if (!is_slices(values[0])) return internal::reduce_tensors(ReduceOp::kSum, values, Axes());
  std::vector<IndexedSlices> slices;
  for (const torch::Tensor& value : values) slices.push_back(to_slices(value));
  return to_sparse(aggregate(slices));
}

IndexedSlices aggregate(const std::vector<IndexedSlices>& values) {
  if (values.empty()) raise(InvalidArgument("aggregate() needs at least one value"));
  std::vector<torch::Tensor> rows, indices;
  for (std::size_t r = 0; r < values.size(); ++r) {
    const IndexedSlices& one = values[r];
    if (!one.values.defined() || !one.indices.defined() || one.indices.dim() != 1 ||
        one.values.dim() == 0 || one.values.size(0) != one.indices.size(0)) {
      raise(InvalidArgument("IndexedSlices {}: values need one row for each index", r));
    }
    if (one.dense_shape != values[0].dense_shape) {
      raise(InvalidArgument(
          "Shape mismatch: IndexedSlices {} are rows of [{}], IndexedSlices 0 of [{}]", r,
          one.dense_shape ? fmt::format("{}", fmt::join(*one.dense_shape, ", ")) : "no shape",
          values[0].dense_shape ? fmt::format("{}", fmt::join(*values[0].dense_shape, ", "))
                                : "no shape"));
    }
    rows.push_back(one.values);
    indices.push_back(one.indices);
  }
  return {internal::gather_tensors(rows, 0), internal::gather_tensors(indices, 0),
          values[0].dense_shape};
}

torch::Tensor divide_by(const torch::Tensor& value, int divisor) {
  return internal::mean_of(value, divisor);
}

IndexedSlices divide_by(const IndexedSlices& value, int divisor) {
  return {internal::mean_of(value.values, divisor), value.indices, value.dense_shape};
}

torch::Tensor copy_to_device(const torch::Tensor& value, const std::string& device) {
  return internal::copy_to(value, Destinations(device).places()[0]);
}

IndexedSlices copy_to_device(const IndexedSlices& value, const std::string& device) {
  return internal::copy_to(value, Destinations(device).places()[0]);
}

}  // namespace muster
