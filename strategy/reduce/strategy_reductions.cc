// reduce and gather of a strategy, in cross-replica context: by its cross-device ops.
#include <algorithm>

#include "collectives/kernels.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/default_strategy.h"
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

// A reduction of one value, which nothing has moved yet.
torch::Tensor AtCurrentDevice(const torch::Tensor& value) {
  const device::Place here = device::PlaceScope::Current();
  const bool somewhere = value.layout() == torch::kStrided || value.is_sparse();
  return !somewhere || device::PlaceOf(value) == here ? value : internal::copy_to(value, here);
}

// Up to this many bytes every process gets all values and adds them in the order of replicas, as
// one process would: bit for bit the same.
constexpr std::size_t kFewBytes = std::size_t{64} << 10;

bool AddsUpBetween(ReduceOp op, const std::vector<torch::Tensor>& values) {
  if (values[0].layout() != torch::kStrided) return false;
  const auto type = internal::dtype_of(values[0].scalar_type());
  const auto reduction =
      op == ReduceOp::kSum ? collectives::Reduction::kSum : collectives::Reduction::kMean;
  return type.has_value() && collectives::Reducible(*type) &&
         collectives::AddsUp(reduction, *type) && values[0].nbytes() > kFewBytes;
}

// The reduction over what all processes bring: of each replica its value, or one plain value.
torch::Tensor ReduceEverywhere(collectives::Group& between, ReduceOp op,
                               const std::vector<torch::Tensor>& values, const Axes& axes) {
  std::vector<torch::Tensor> defined;
  for (const torch::Tensor& value : values) {
    if (value.defined()) defined.push_back(value);
  }
  // The others may be about to add up: none waits for this one.
  const bool add_up = !axes.given() && !defined.empty() && AddsUpBetween(op, defined);
  if (add_up && defined.size() < values.size()) {
    internal::brought_by(&between,
                         [] { raise(InvalidArgument("a replica holds an undefined tensor")); });
  }
  // What is undefined here, or sparse, all hear of.
  if (!add_up) {
    return internal::reduce_tensors(op, internal::values_of_all(between, "reduce", values), axes);
  }
  const torch::Tensor sum = internal::brought_by(
      &between, [&] { return internal::reduce_tensors(ReduceOp::kSum, values, axes); });
  const torch::Tensor total = internal::here(internal::sum_between(between, {sum})[0]);
  if (op == ReduceOp::kSum) return total;
  return internal::mean_of(total, static_cast<double>(values.size()) * between.size());
}

// How often a process of several brings what is one object on all its replicas. To a mean as often
// as it has replicas, for the others may bring a value of each; the mean stays what it is.
std::size_t CountOfOne(ReduceOp op, const Strategy& strategy) {
  return op == ReduceOp::kMean ? static_cast<std::size_t>(strategy.num_local_replicas()) : 1;
}

}  // namespace

CrossDeviceOps& Strategy::cross_device_ops() const {
  std::call_once(ops_chosen_, [this] {
    if (ops_ == nullptr) ops_ = select_cross_device_ops(worker_devices_);
  });
  return *ops_;
}

// Over all processes where there are several. Here alone: by the cross-device ops, but for what
// only libtorch can do, axes and gradients.
torch::Tensor Strategy::reduce_components(ReduceOp op, const std::vector<torch::Tensor>& values,
                                          const Axes& axes) const {
  internal::check_op(op);
  if (::muster::collectives::Group* const between = collectives()) {
    const auto slices = internal::brought_by(between, [&] {
      std::vector<IndexedSlices> rows;
      if (!is_slices(values[0])) return rows;
      for (const torch::Tensor& value : values) rows.push_back(to_slices(value));
      return rows;
    });
    if (slices.empty()) return ReduceEverywhere(*between, op, values, axes);
    return to_sparse(reduce_slices(op, slices, axes));
  }
  if (values.size() == 1) {
    const torch::Tensor one = internal::reduce_tensors(op, values, axes);
    // The default strategy gives back what it is given; others memory of its own, as from several.
    if (this == &default_strategy()) return one;
    return one.is_same(values[0]) ? internal::copy_to(one, device::PlaceScope::Current())
                                  : AtCurrentDevice(one);
  }
  if (axes.given()) return internal::reduce_tensors(op, values, axes);
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
    all.resize(std::max(all.size(), CountOfOne(op, *this)), values[0]);
    all = internal::slices_of_all(*between, "reduce of IndexedSlices", all);
  }
  if (all.size() == 1) {
    const IndexedSlices sum = aggregate(all);
    const IndexedSlices one = op == ReduceOp::kMean ? divide_by(sum, 1) : sum;
    return {AtCurrentDevice(one.values), AtCurrentDevice(one.indices), one.dense_shape};
  }
  return cross_device_ops().reduce(op, PerReplica<IndexedSlices>(all), CurrentDevice())[0];
}

// Other processes may have values and be about to reduce: they hear that there are none here.
void Strategy::raise_undistributed() const {
  if (::muster::collectives::Group* const between = collectives()) {
    try {
      const std::vector<torch::Tensor> none(static_cast<std::size_t>(num_local_replicas()));
      (void)internal::values_of_all(*between, "reduce", none);
    } catch (const Error&) {  // why there are none says more
    }
  }
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
  if (takes_plain_values()) {
    return reduce_components(op, std::vector<torch::Tensor>(CountOfOne(op, *this), value), axes);
  }
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
