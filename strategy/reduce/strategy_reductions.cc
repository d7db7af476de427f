// reduce and gather of a strategy, in cross-replica context: by its cross-device ops.
#include <algorithm>

#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/values/internal/crew.h"
#include "strategy/values/internal/reduction.h"

namespace muster {
namespace {

// Where libtorch would allocate here.
Destinations CurrentDevice() { return device::PlaceScope::Current().Canonical(); }

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
  if (axes.given() || values.size() == 1) return internal::reduce_tensors(op, values, axes);
  // A backward pass through the sum needs libtorch's own additions.
  const bool wants_gradient =
      torch::GradMode::is_enabled() &&
      std::any_of(values.begin(), values.end(),
                  [](const torch::Tensor& value) { return value.requires_grad(); });
  if (wants_gradient) return internal::reduce_tensors(op, values, axes);
  // Large values are reduced in slices, by the replicas' threads.
  const collectives::Crew crew{.size = num_replicas_in_sync(),
                               .run = [&](const auto& body) { on_replica_threads(body); }};
  const internal::CrewScope scope(crew);
  return cross_device_ops().reduce(op, PerReplica<torch::Tensor>(values), CurrentDevice())[0];
}

IndexedSlices Strategy::reduce_slices(ReduceOp op, const std::vector<IndexedSlices>& values,
                                      const Axes& axes) const {
  internal::check_op(op);
  if (axes.given()) raise(Unimplemented("reduce() over axes does not support IndexedSlices"));
  if (values.size() == 1) {
    if (num_replicas_in_sync() > 1 && op == ReduceOp::kSum) raise_undistributed();
    return values[0];
  }
  return cross_device_ops().reduce(op, PerReplica<IndexedSlices>(values), CurrentDevice())[0];
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
  if (num_replicas_in_sync() > 1 && op == ReduceOp::kSum) {
    raise_undistributed();
  }
  if (!axes.given() && num_replicas_in_sync() > 1) return value;
  return internal::reduce_tensors(op, {value}, axes);
}

torch::Tensor Strategy::gather_components(const std::vector<torch::Tensor>& values,
                                          int axis) const {
  return cross_device_ops().gather(PerReplica<torch::Tensor>(values), CurrentDevice(), axis)[0];
}

}  // namespace muster
