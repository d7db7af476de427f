// reduce and gather of a strategy, in cross-replica context: by its cross-device ops.
#include <algorithm>

#include "collectives/kernels.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/values/internal/copies.h"
#include "strategy/values/internal/crew.h"
#include "strategy/values/internal/reduction.h"
#include "strategy/values/sparse.h"

namespace muster {
namespace {

// Where libtorch would allocate here.
Destinations CurrentDevice() { return device::PlaceScope::Current().Canonical(); }

// Up to this many bytes every process gets all values and adds them in the order of replicas, as
// one process would: bit for bit the same.
constexpr std::size_t kFewBytes = std::size_t{64} << 10;

bool AddsUpBetween(ReduceOp op, const std::vector<torch::Tensor>& values) {
  const auto type = internal::dtype_of(values[0].scalar_type());
  const auto reduction =
      op == ReduceOp::kSum ? collectives::Reduction::kSum : collectives::Reduction::kMean;
  return type.has_value() && collectives::Reducible(*type) &&
         collectives::AddsUp(reduction, *type) && values[0].nbytes() > kFewBytes;
}

// The reduction over what all processes bring: of each replica its value, or one plain value.
torch::Tensor ReduceEverywhere(collectives::Group& between, ReduceOp op,
                               const std::vector<torch::Tensor>& values, const Axes& axes) {
  for (const torch::Tensor& value : values) {
    if (!value.defined()) raise(InvalidArgument("a replica holds an undefined tensor"));
  }
  if (axes.given() || !AddsUpBetween(op, values)) {
    return internal::reduce_tensors(op, internal::values_of_all(between, "reduce", values), axes);
  }
  const torch::Tensor sum = internal::reduce_tensors(ReduceOp::kSum, values, axes);
  const torch::Tensor total = internal::here(internal::sum_between(between, {sum})[0]);
  if (op == ReduceOp::kSum) return total;
  return internal::mean_of(total, static_cast<double>(values.size()) * between.size());
}

}  // namespace

CrossDeviceOps& Strategy::cross_device_ops() const {
  std::call_once(ops_chosen_, [this] {
    if (ops_ == nullptr) ops_ = select_cross_device_ops(worker_devices_);
  });
  return *ops_;
}

torch::Tensor Strategy::reduce_components(ReduceOp op, const std::vector<torch::Tensor>& values,
                                          const Axes& axes) const {
  internal::check_op(op);
  if (::muster::collectives::Group* const between = collectives()) {
    if (!is_slices(values[0])) return ReduceEverywhere(*between, op, values, axes);
    std::vector<IndexedSlices> slices;
    for (const torch::Tensor& value : values) slices.push_back(to_slices(value));
    return to_sparse(reduce_slices(op, slices, axes));
  }
  if (axes.given() || values.size() == 1) return internal::reduce_tensors(op, values, axes);
  // A backward pass through the sum needs libtorch's own additions.
  const bool wants_gradient =
      torch::GradMode::is_enabled() &&
      std::any_of(values.begin(), values.end(),
                  [](const torch::Tensor& value) { return value.requires_grad(); });
  if (wants_gradient) return internal::reduce_tensors(op, values, axes);
  // Large values are reduced in slices, by the replicas' threads.
  const ::muster::collectives::Crew crew{
      .size = num_local_replicas(), .run = [&](const auto& body) { on_replica_threads(body); }};
  const internal::CrewScope scope(crew);
  return cross_device_ops().reduce(op, PerReplica<torch::Tensor>(values), CurrentDevice())[0];
}

IndexedSlices Strategy::reduce_slices(ReduceOp op, const std::vector<IndexedSlices>& values,
                                      const Axes& axes) const {
  internal::check_op(op);
  if (axes.given()) raise(Unimplemented("reduce() over axes does not support IndexedSlices"));
  std::vector<IndexedSlices> all = values;
  if (static_cast<int>(values.size()) < num_local_replicas() && !takes_plain_values()) {
    if (op == ReduceOp::kSum) raise_undistributed();
    return values[0];
  }
  if (::muster::collectives::Group* const between = collectives()) {
    all = internal::slices_of_all(*between, "reduce of IndexedSlices", values);
  }
  if (all.size() == 1) return all[0];
  return cross_device_ops().reduce(op, PerReplica<IndexedSlices>(all), CurrentDevice())[0];
}

void Strategy::raise_undistributed() const {
  raise(InvalidArgument(
      "A non-DistributedValues value cannot be reduced with the given reduce op SUM over {} "
      "replicas: every replica holds this one object; use MEAN, or a value that run() returned",
      num_replicas_in_sync()));
}

void Strategy::refuse_gather_of_slices() {
  raise(Unimplemented("gather does not support IndexedSlices"));
}

torch::Tensor Strategy::reduce_undistributed(ReduceOp op, const torch::Tensor& value,
                                             const Axes& axes) const {
  if (takes_plain_values()) return reduce_components(op, {value}, axes);
  if (num_replicas_in_sync() > 1 && op == ReduceOp::kSum) {
    raise_undistributed();
  }
  if (!axes.given() && num_replicas_in_sync() > 1) return value;
  return internal::reduce_tensors(op, {value}, axes);
}

torch::Tensor Strategy::gather_components(const std::vector<torch::Tensor>& values,
                                          int axis) const {
  if (::muster::collectives::Group* const between = collectives()) {
    const auto all = internal::values_of_all(*between, "gather", values);
    return cross_device_ops().gather(PerReplica<torch::Tensor>(all), CurrentDevice(), axis)[0];
  }
  return cross_device_ops().gather(PerReplica<torch::Tensor>(values), CurrentDevice(), axis)[0];
}

}  // namespace muster
