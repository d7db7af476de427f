// Sums by NCCL, in builds that have it (docs/strategies/README.md). Its headers stay behind this.
#pragma once

#include <vector>

#include "strategy/base/options.h"
#include "strategy/base/torch.h"

namespace muster::internal {

// Whether NCCL is in this build.
bool nccl_in_build();

// results[d]: the sum or mean of `values`, each dense and on a card of its own, on the d-th card.
// False, and nothing done, where NCCL cannot: not in this build, shapes or types that differ, types
// that it does not add, means of integers.
//   UNAVAILABLE: NCCL failed; the text is its own.
bool nccl_all_reduce(ReduceOp op, const std::vector<torch::Tensor>& values,
                     std::vector<torch::Tensor>& results);

}  // namespace muster::internal
