#include "strategy/train/loss.h"

#include <vector>

#include <fmt/format.h>

#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/core/context.h"
#include "strategy/core/strategy.h"

namespace muster {
namespace {

void RequireReplica(const char* call, const char* why) {
  if (!has_strategy() || !in_cross_replica_context()) return;
  raise(FailedPrecondition("{} in cross-replica context: {}; call it inside run()", call, why));
}

}  // namespace

namespace internal {
torch::Tensor broadcast_weights(const char* what, const torch::Tensor& weights,
                                const torch::Tensor& values) {
  const std::int64_t rank = weights.dim();
  bool fits = weights.numel() == 1 || rank <= values.dim();
  for (std::int64_t axis = 0; fits && weights.numel() != 1 && axis < rank; ++axis) {
    fits = weights.size(axis) == values.size(axis) || weights.size(axis) == 1;
  }
  if (!fits) {
    raise(InvalidArgument(
        "{}: weights of shape {} do not fit values of shape {}: they need its first axes, or one "
        "element",
        what, ShapeText(weights), ShapeText(values)));
  }
  if (weights.numel() == 1) return weights.reshape({}).expand_as(values);
  std::vector<std::int64_t> sizes = weights.sizes().vec();
  sizes.resize(static_cast<std::size_t>(values.dim()), 1);
  return weights.reshape(sizes).expand_as(values);
}
}  // namespace internal

torch::Tensor compute_average_loss(const torch::Tensor& per_example,
                                   std::optional<std::int64_t> global_batch,
                                   const torch::Tensor& sample_weight) {
  if (!per_example.defined()) raise(InvalidArgument("compute_average_loss: no losses"));
  if (!global_batch.has_value()) {
    RequireReplica("compute_average_loss", "how many examples the replicas have is not known here");
    if (per_example.dim() == 0) {
      raise(InvalidArgument(
          "compute_average_loss: a scalar says nothing of how many examples it stands for; give "
          "one loss for each example, or the global batch"));
    }
    global_batch = per_example.size(0) * get_strategy().num_replicas_in_sync();
    // A replica that got nothing adds nothing.
    if (*global_batch == 0) return per_example.sum();
  }
  if (*global_batch < 1) {
    raise(InvalidArgument("compute_average_loss: a global batch of {}, at least 1 is needed",
                          *global_batch));
  }
  const torch::Tensor weighted =
      sample_weight.defined()
          ? per_example *
                internal::broadcast_weights("compute_average_loss", sample_weight, per_example)
          : per_example;
  return weighted.sum() / *global_batch;
}

torch::Tensor scale_regularization_loss(const torch::Tensor& loss) {
  RequireReplica("scale_regularization_loss", "each replica adds its share");
  return loss.sum() / get_strategy().num_replicas_in_sync();
}

}  // namespace muster
