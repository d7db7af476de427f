#include "strategy/values/internal/reduction.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "collectives/kernels.h"
#include "collectives/packing.h"
#include "common/torch/dtypes.h"
#include "device/placing.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/values/internal/copies.h"
#include "strategy/values/internal/crew.h"

namespace muster::internal {
namespace {

// Below this many bytes of one value waking other threads costs more than they save.
constexpr std::size_t kSharedBytes = std::size_t{256} << 10;

torch::Tensor SumOver(const torch::Tensor& value, const Axes& axes, torch::ScalarType wide) {
  if (!axes.given()) return value;
  const std::vector<std::int64_t> resolved = axes.resolve(value.dim());
  if (resolved.empty()) return value;  // libtorch takes no axes for all
  // Some versions of libtorch can, for some layouts and axes.
  if (value.layout() != torch::kStrided) {
    raise(Unimplemented(
        "reduce() over axes does not support IndexedSlices or other sparse tensors; reduce "
        "without axes, or make the value dense by to_dense()"));
  }
  return value.sum(resolved, /*keepdim=*/false, wide);
}

bool HasKernel(const std::vector<torch::Tensor>& values) {
  for (const torch::Tensor& value : values) {
    if (!value.defined() || value.layout() != torch::kStrided || !value.device().is_cpu() ||
        value.scalar_type() != values[0].scalar_type() ||
        !value.sizes().equals(values[0].sizes()) ||
        (torch::GradMode::is_enabled() && value.requires_grad())) {
      return false;
    }
  }
  const std::optional<DType> type = dtype_of(values[0].scalar_type());
  return type.has_value() && collectives::Reducible(*type);
}

void CheckSummable(const std::vector<torch::Tensor>& values) {
  for (std::size_t r = 0; r < values.size(); ++r) {
    if (!values[r].defined()) raise(InvalidArgument("replica {} holds an undefined tensor", r));
    if (values[r].scalar_type() != values[0].scalar_type()) {
      raise(InvalidArgument("replica {} holds {}, replica 0 holds {}", r,
                            torch::toString(values[r].scalar_type()),
                            torch::toString(values[0].scalar_type())));
    }
  }
}

}  // namespace

void check_op(ReduceOp op) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) return;
  raise(InvalidArgument("reduce op {} is not one of: SUM, MEAN", static_cast<int>(op)));
}

torch::Tensor mean_of(const torch::Tensor& sum, double count) {
  const bool integers = torch::isIntegralType(sum.scalar_type(), /*includeBool=*/true);
  return (integers ? sum.to(torch::kDouble) : sum) / count;
}

std::optional<DType> dtype_of(torch::ScalarType type) {
  const DType dtype = DTypeOf(type);
  return dtype == DType::kUnspecified ? std::nullopt : std::optional(dtype);
}

torch::ScalarType scalar_type_of(DType type) { return ScalarTypeOf(type).value(); }

torch::ScalarType sum_type(torch::ScalarType type) {
  return type == torch::kHalf || type == torch::kBFloat16 ? torch::kFloat : type;
}

torch::ScalarType mean_sum_type(torch::ScalarType type) {
  return torch::isIntegralType(type, /*includeBool=*/false) ? torch::kLong : sum_type(type);
}

bool reduce_buffers(ReduceOp op, const std::vector<torch::Tensor>& values,
                    const std::vector<device::Place>& devices,
                    std::vector<torch::Tensor>& results) {
  check_op(op);
  if (!HasKernel(values) || std::any_of(devices.begin(), devices.end(), device::IsGpu)) {
    return false;
  }
  const torch::NoGradGuard no_grad;
  const DType type = *dtype_of(values[0].scalar_type());
  const auto reduction =
      op == ReduceOp::kSum ? collectives::Reduction::kSum : collectives::Reduction::kMean;
  std::vector<torch::Tensor> contiguous;
  std::vector<const void*> sources;
  for (const torch::Tensor& value : values) {
    contiguous.push_back(plain_of(value));
    sources.push_back(contiguous.back().data_ptr());
  }
  results.clear();
  std::vector<void*> destinations;
  for (const device::Place place : devices) {
    const device::PlaceScope scope(place);
    results.push_back(torch::empty(
        values[0].sizes(), torch::dtype(scalar_type_of(collectives::ResultType(reduction, type)))));
    destinations.push_back(results.back().data_ptr());
  }
  const auto count = static_cast<std::size_t>(values[0].numel());
  const collectives::Crew& crew = current_crew();
  if (crew.size <= 1 || count * SizeOf(type) < kSharedBytes) {
    collectives::ReduceRange(reduction, type, sources, destinations, 0, count);
    return true;
  }
  crew.run([&](int part) {
    const collectives::Range slice = collectives::SliceOf(count, static_cast<std::size_t>(part),
                                                          static_cast<std::size_t>(crew.size));
    collectives::ReduceRange(reduction, type, sources, destinations, slice.begin, slice.end);
  });
  return true;
}

torch::Tensor reduce_tensors(ReduceOp op, const std::vector<torch::Tensor>& values,
                             const Axes& axes) {
  check_op(op);
  std::vector<torch::Tensor> one;
  if (!axes.given() && values.size() > 1 &&
      reduce_buffers(op, values, {device::PlaceScope::Current()}, one)) {
    return one[0];
  }
  CheckSummable(values);
  const torch::ScalarType type = values[0].scalar_type();
  if (type == torch::kBool && (values.size() > 1 || axes.given())) {
    raise(InvalidArgument("bool has no sum over {}; convert it to a number type",
                          axes.given() ? "axes" : "replicas"));
  }
  const torch::ScalarType wide_type = op == ReduceOp::kMean ? mean_sum_type(type) : sum_type(type);
  torch::Tensor sum;
  double elements = 0;
  for (std::size_t r = 0; r < values.size(); ++r) {
    const torch::Tensor part = SumOver(values[r], axes, wide_type);
    if (sum.defined() && !part.sizes().equals(sum.sizes())) {
      raise(InvalidArgument("Shape mismatch: replica {} holds shape {}, replica 0 shape {}", r,
                            ShapeText(values[r]), ShapeText(values[0])));
    }
    const torch::Tensor wide = (values.size() > 1 ? here(part) : part).to(wide_type);
    sum = sum.defined() ? sum + wide : wide;
    elements += axes.given() ? static_cast<double>(values[r].numel()) /
                                   static_cast<double>(std::max<std::int64_t>(1, part.numel()))
                             : 1.0;
  }
  if (op == ReduceOp::kMean) sum = mean_of(sum, elements);
  return sum_type(type) == type ? sum : sum.to(type);
}

void check_gather(const std::vector<std::vector<std::int64_t>>& shapes, int axis) {
  const auto& first = shapes[0];
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    if (shapes[r].empty()) {
      raise(
          InvalidArgument("replica {} holds a scalar: there is no axis to gather along; give it "
                          "a dimension, reshape({{1}})",
                          r));
    }
    if (shapes[r].size() != first.size()) {
      raise(InvalidArgument("ranks differ: replica {} holds shape [{}], replica 0 shape [{}]", r,
                            fmt::join(shapes[r], ", "), fmt::join(first, ", ")));
    }
  }
  if (axis < 0 || static_cast<std::size_t>(axis) >= first.size()) {
    raise(InvalidArgument("axis out of range for value with rank {}: {} is not in [0, {})",
                          first.size(), axis, first.size()));
  }
  for (std::size_t r = 1; r < shapes.size(); ++r) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (i == static_cast<std::size_t>(axis) || shapes[r][i] == first[i]) continue;
      raise(InvalidArgument(
          "Shape mismatch: Dimension {} in both shapes must be equal: replica {} holds [{}], "
          "replica 0 [{}]",
          i, r, fmt::join(shapes[r], ", "), fmt::join(first, ", ")));
    }
  }
}

torch::Tensor gather_tensors(const std::vector<torch::Tensor>& values, int axis) {
  CheckSummable(values);
  std::vector<std::vector<std::int64_t>> shapes;
  for (const torch::Tensor& value : values) {
    if (value.layout() != torch::kStrided) {
      raise(Unimplemented("gather does not support IndexedSlices or other sparse tensors"));
    }
    shapes.push_back(value.sizes().vec());
  }
  check_gather(shapes, axis);
  if (values.size() == 1) return torch::cat(values, axis);
  std::vector<torch::Tensor> together;
  for (const torch::Tensor& value : values) together.push_back(here(value));
  return torch::cat(together, axis);
}

}  // namespace muster::internal
