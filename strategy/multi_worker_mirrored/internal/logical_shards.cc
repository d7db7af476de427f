#include "strategy/multi_worker_mirrored/internal/logical_shards.h"

#include <cstddef>
#include <utility>

#include "strategy/base/internal/raise.h"

namespace muster::internal {
namespace {

struct Node {
  ShardRange range;
  std::vector<torch::Tensor> values;
};

bool Siblings(ShardRange left, ShardRange right) {
  const int size = left.end - left.begin;
  return left.end == right.begin && right.end - right.begin == size && left.begin % (2 * size) == 0;
}

// Adds a node behind those that there are; what is a whole subtree becomes one.
void Push(std::vector<Node>& nodes, Node node) {
  nodes.push_back(std::move(node));
  while (nodes.size() > 1 && Siblings(nodes[nodes.size() - 2].range, nodes.back().range)) {
    const Node right = std::move(nodes.back());
    nodes.pop_back();
    Node& left = nodes.back();
    for (std::size_t i = 0; i < left.values.size(); ++i) left.values[i].add_(right.values[i]);
    left.range.end = right.range.end;
  }
}

}  // namespace

ShardRange shards_of(int rank, int workers, int shards) {
  const auto place = [&](int worker) {
    return static_cast<int>(static_cast<std::int64_t>(worker) * shards / workers);
  };
  return {place(rank), place(rank + 1)};
}

std::vector<ShardRange> subtrees_of(ShardRange range) {
  std::vector<Node> nodes;
  for (int shard = range.begin; shard < range.end; ++shard) Push(nodes, {{shard, shard + 1}, {}});
  std::vector<ShardRange> subtrees;
  for (const Node& node : nodes) subtrees.push_back(node.range);
  return subtrees;
}

std::vector<torch::Tensor> sum_over_shards(
    collectives::Group* group, int shards,
    const std::function<std::vector<torch::Tensor>(int shard)>& compute) {
  const int workers = group == nullptr ? 1 : group->size();
  const ShardRange own = shards_of(group == nullptr ? 0 : group->rank(), workers, shards);
  std::vector<Node> nodes;
  for (int shard = own.begin; shard < own.end; ++shard) {
    Push(nodes, {{shard, shard + 1}, compute(shard)});
  }
  const torch::NoGradGuard no_grad;
  if (workers == 1) return std::move(nodes.front().values);

  const std::size_t count = nodes.front().values.size();
  std::vector<torch::Tensor> mine;
  std::vector<torch::Tensor> all;
  std::vector<collectives::GatherBuffer> buffers;
  std::vector<ShardRange> ranges;
  for (int rank = 0; rank < workers; ++rank) {
    for (const ShardRange range : subtrees_of(shards_of(rank, workers, shards))) {
      ranges.push_back(range);
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<torch::Tensor> parts;
    for (const Node& node : nodes) parts.push_back(node.values[i].reshape({1, -1}));
    mine.push_back(torch::cat(parts).contiguous());
    const torch::Tensor& value = parts.front();
    all.push_back(
        torch::empty({static_cast<std::int64_t>(ranges.size()), value.size(1)}, value.options()));
    collectives::GatherBuffer buffer{
        .in = mine.back().data_ptr(), .out = all.back().data_ptr(), .block_bytes = {}};
    for (int rank = 0; rank < workers; ++rank) {
      const auto subtrees = subtrees_of(shards_of(rank, workers, shards)).size();
      buffer.block_bytes.push_back(subtrees * value.nbytes());
    }
    buffers.push_back(std::move(buffer));
  }
  raise_unless_ok(group->AllGather(buffers));
  std::vector<Node> tree;
  for (std::size_t n = 0; n < ranges.size(); ++n) {
    Node node{ranges[n], {}};
    for (std::size_t i = 0; i < count; ++i) {
      node.values.push_back(
          all[i][static_cast<std::int64_t>(n)].reshape(nodes.front().values[i].sizes()));
    }
    Push(tree, std::move(node));
  }
  return std::move(tree.front().values);
}

}  // namespace muster::internal
