// Losses of one global batch that is spread over replicas: each divides its sum by the examples of
// all, so that the sum over replicas (of losses, and of gradients) is the mean of the whole batch.
//
// Threading: any thread; in a replica, for that replica.
#pragma once

#include <cstdint>
#include <optional>

#include "strategy/base/torch.h"

namespace muster {

// sum(per_example * sample_weight) / global_batch, a scalar. `global_batch` is by default what this
// replica has (axis 0) times the number of replicas. Weights have the shape of the first axes of
// `per_example`, or one element.
//   INVALID_ARGUMENT: a global batch below 1; a scalar without one; weights that do not fit.
//   FAILED_PRECONDITION: without a global batch in cross-replica context.
torch::Tensor compute_average_loss(const torch::Tensor& per_example,
                                   std::optional<std::int64_t> global_batch = std::nullopt,
                                   const torch::Tensor& sample_weight = {});

// sum(loss) / number of replicas: for what every replica adds whole, such as a penalty on weights.
//   FAILED_PRECONDITION: in cross-replica context of a strategy.
torch::Tensor scale_regularization_loss(const torch::Tensor& loss);

namespace internal {
// `weights` in the shape of `values`. INVALID_ARGUMENT naming `what` and both shapes.
torch::Tensor broadcast_weights(const char* what, const torch::Tensor& weights,
                                const torch::Tensor& values);
}  // namespace internal
}  // namespace muster
