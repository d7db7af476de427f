// Sums of gradients over replicas, by the strategy's cross-device ops.
//
// Replicas may lack some gradients (undefined): they count as 0; what none has stays undefined.
// Rows (a sparse COO tensor with one sparse dimension) stay rows when all replicas that have the
// gradient have it so; each index comes once in the sum.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strategy/base/torch.h"

namespace muster {
class CrossDeviceOps;
class ReplicaContext;
namespace internal {

// What a gradient is on one replica; over several of them it is the greatest that it is on any.
// kAgain: something was summed that it no longer is (early_sums.h).
enum class GradientKind : std::uint8_t { kNone, kRows, kDense, kAgain };

std::vector<GradientKind> KindsOf(const std::vector<torch::Tensor>& gradients);
// Called by all replicas: what the gradients are over all of them.
//   INVALID_ARGUMENT: not equally many gradients on all replicas.
std::vector<GradientKind> AgreeOnKinds(ReplicaContext& replica, std::vector<GradientKind> mine);

// Called by all replicas: each gets the sums, on its own device.
//   INVALID_ARGUMENT: as AgreeOnKinds().
std::vector<torch::Tensor> SumOverReplicas(ReplicaContext& replica,
                                           const std::vector<torch::Tensor>& gradients,
                                           const std::vector<torch::Tensor>& parameters);
// The same where all have agreed on the kinds, none of which is kAgain.
std::vector<torch::Tensor> SumOfKinds(ReplicaContext& replica,
                                      const std::vector<GradientKind>& kinds,
                                      const std::vector<torch::Tensor>& gradients,
                                      const std::vector<torch::Tensor>& parameters);
// The sums of gradients[replica][i], on one device.
std::vector<torch::Tensor> SumOnto(CrossDeviceOps& ops, const std::string& device,
                                   const std::vector<std::vector<torch::Tensor>>& gradients,
                                   const std::vector<torch::Tensor>& parameters);

}  // namespace internal
}  // namespace muster
