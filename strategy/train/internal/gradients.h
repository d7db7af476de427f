// Sums of gradients over replicas, by the strategy's cross-device ops.
//
// Replicas may lack some gradients (undefined): they count as 0; what none has stays undefined.
// Rows (a sparse COO tensor with one sparse dimension) stay rows when all replicas that have the
// gradient have it so; each index comes once in the sum.
#pragma once

#include <string>
#include <vector>

#include "strategy/base/torch.h"

namespace muster {
class CrossDeviceOps;
class ReplicaContext;
namespace internal {

// Called by all replicas: each gets the sums, on its own device.
//   INVALID_ARGUMENT: not equally many gradients on all replicas.
std::vector<torch::Tensor> SumOverReplicas(ReplicaContext& replica,
                                           const std::vector<torch::Tensor>& gradients,
                                           const std::vector<torch::Tensor>& parameters);
// The sums of gradients[replica][i], on one device.
std::vector<torch::Tensor> SumOnto(CrossDeviceOps& ops, const std::string& device,
                                   const std::vector<std::vector<torch::Tensor>>& gradients,
                                   const std::vector<torch::Tensor>& parameters);

}  // namespace internal
}  // namespace muster
