// Sums over the logical shards of a step that do not depend on who computed which shard.
//
// The shards are the leaves of a binary tree. Each worker computes a run of them and adds up the
// largest subtrees that it has whole; these are gathered, and every worker adds them up to the
// root.
#pragma once

#include <functional>
#include <vector>

#include "collectives/group.h"
#include "strategy/base/torch.h"

namespace muster::internal {

struct ShardRange {
  int begin = 0;
  int end = 0;
};

// Worker `rank` of `workers` has these of `shards`.
ShardRange shards_of(int rank, int workers, int shards);
// The largest whole subtrees in a range, in order.
std::vector<ShardRange> subtrees_of(ShardRange range);

// Value by value the sum over `shards` (a power of two) of what `compute` gives: equally many dense
// tensors of equal types and shapes for each, which may be written. `group` null: all shards are
// computed here.
std::vector<torch::Tensor> sum_over_shards(
    collectives::Group* group, int shards,
    const std::function<std::vector<torch::Tensor>(int shard)>& compute);

}  // namespace muster::internal
