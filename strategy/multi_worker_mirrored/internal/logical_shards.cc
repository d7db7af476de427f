#include "strategy/multi_worker_mirrored/internal/logical_shards.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "collectives/shard_tree.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"

namespace muster::internal {
namespace {

using Values = std::vector<torch::Tensor>;

// Behind each other in memory every value begins where any type may.
std::size_t RoomFor(const torch::Tensor& value) { return (value.nbytes() + 15) / 16 * 16; }

void Add(Values& left, const Values& right) {
  for (std::size_t i = 0; i < left.size(); ++i) left[i].add_(right[i]);
}

}  // namespace

// The own shards are added up as far as whole subtrees go; what is left of all workers travels, and
// each adds it up to the root.
std::vector<torch::Tensor> sum_over_shards(collectives::Group* group, int shards,
                                           const std::function<Values(int shard)>& compute,
                                           const std::function<Values()>& like) {
  const int workers = group == nullptr ? 1 : group->size();
  const collectives::ShardRange own =
      collectives::ShardsOf(group == nullptr ? 0 : group->rank(), workers, shards);
  std::vector<collectives::ShardNode<Values>> nodes;
  for (int shard = own.begin; shard < own.end; ++shard) {
    Values values = compute(shard);
    const torch::NoGradGuard no_grad;
    collectives::PushShard(nodes, {{shard, shard + 1}, std::move(values)}, Add);
  }
  const torch::NoGradGuard no_grad;
  if (workers == 1) return std::move(nodes.front().value);

  const Values form = nodes.empty() ? like() : nodes.front().value;
  std::size_t bytes = 0;
  for (const torch::Tensor& value : form) bytes += RoomFor(value);
  std::vector<std::byte> mine(nodes.size() * bytes);
  std::byte* to = mine.data();
  for (const auto& node : nodes) {
    for (const torch::Tensor& value : node.value) {
      const torch::Tensor whole = plain_of(value.to(torch::kCPU));
      if (whole.nbytes() > 0) std::memcpy(to, whole.data_ptr(), whole.nbytes());
      to += RoomFor(whole);
    }
  }
  auto gathered = collectives::GatherSubtrees(*group, shards, mine, bytes);
  raise_unless_ok(gathered.status());
  std::byte* from = gathered->data();
  std::vector<collectives::ShardNode<Values>> tree;
  for (int rank = 0; rank < workers; ++rank) {
    for (const collectives::ShardRange range :
         collectives::SubtreesOf(collectives::ShardsOf(rank, workers, shards))) {
      Values values;
      for (const torch::Tensor& one : form) {
        values.push_back(torch::from_blob(from, one.sizes(), one.options().device(torch::kCPU)));
        from += RoomFor(one);
      }
      collectives::PushShard(tree, {range, std::move(values)}, Add);
    }
  }
  // The memory of the gathered ones ends here.
  Values sums;
  for (std::size_t i = 0; i < form.size(); ++i) {
    sums.push_back(tree.front().value[i].to(form[i].device(), form[i].scalar_type(),
                                            /*non_blocking=*/false, /*copy=*/true));
  }
  return sums;
}

}  // namespace muster::internal
