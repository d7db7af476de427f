// Sums of tensors over the logical shards of a step (collectives/shard_tree.h).
#pragma once

#include <functional>
#include <vector>

#include "collectives/group.h"
#include "strategy/base/torch.h"

namespace muster::internal {

// Value by value the sum over `shards` (a power of two) of what `compute` gives: equally many dense
// tensors of equal types and shapes for each, which may be written. `group` null: all shards are
// computed here.
std::vector<torch::Tensor> sum_over_shards(
    collectives::Group* group, int shards,
    const std::function<std::vector<torch::Tensor>(int shard)>& compute);

}  // namespace muster::internal
