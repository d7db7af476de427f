// Sums of tensors over the logical shards of a step (collectives/shard_tree.h).
#pragma once

#include <functional>
#include <vector>

#include "collectives/group.h"
#include "strategy/base/torch.h"

namespace muster::internal {

// Value by value the sum over `shards` (a power of two) of what `compute` gives: equally many dense
// tensors of equal types and shapes for each, which may be written, on the same device each; there
// is its sum. Between processes all go through host memory. `group` null: all shards are computed
// here. `like`: values of the same types, shapes and devices, for a member that has no shard. So it
// is where members are more than shards: the process of a worker that was taken for lost may live
// beside the one that took its place.
std::vector<torch::Tensor> sum_over_shards(
    collectives::Group* group, int shards,
    const std::function<std::vector<torch::Tensor>(int shard)>& compute,
    const std::function<std::vector<torch::Tensor>()>& like);

}  // namespace muster::internal
