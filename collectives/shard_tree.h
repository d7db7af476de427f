// Sums over logical shards that do not depend on who computed which: the shards are the leaves of a
// binary tree, each member has a run of them and adds up the largest subtrees that it has whole;
// these are gathered, and everybody adds them up to the root.
//
// Threading: pure functions; GatherSubtrees() is a call of the group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "collectives/group.h"
#include "common/base/status.h"

namespace muster::collectives {

struct ShardRange {
  int begin = 0;
  int end = 0;
};

// Member `rank` of `members` has these of `shards`.
inline ShardRange ShardsOf(int rank, int members, int shards) {
  const auto place = [&](int member) {
    return static_cast<int>(static_cast<std::int64_t>(member) * shards / members);
  };
  return {place(rank), place(rank + 1)};
}

// What has been added up of a range.
template <class Value>
struct ShardNode {
  ShardRange range;
  Value value;
};

// Adds a node behind those that there are, in the order of shards. Of two that are a whole subtree
// add(left, right) makes one: it adds the right value to the left one.
template <class Value, class Add>
void PushShard(std::vector<ShardNode<Value>>& nodes, ShardNode<Value> node, const Add& add) {
  const auto siblings = [](ShardRange left, ShardRange right) {
    const int size = left.end - left.begin;
    return left.end == right.begin && right.end - right.begin == size &&
           left.begin % (2 * size) == 0;
  };
  nodes.push_back(std::move(node));
  while (nodes.size() > 1 && siblings(nodes[nodes.size() - 2].range, nodes.back().range)) {
    ShardNode<Value> right = std::move(nodes.back());
    nodes.pop_back();
    add(nodes.back().value, right.value);
    nodes.back().range.end = right.range.end;
  }
}

// The largest whole subtrees in a range, in order.
inline std::vector<ShardRange> SubtreesOf(ShardRange range) {
  std::vector<ShardNode<char>> nodes;
  for (int shard = range.begin; shard < range.end; ++shard) {
    PushShard(nodes, {{shard, shard + 1}, 0}, [](char, char) {});
  }
  std::vector<ShardRange> subtrees;
  for (const ShardNode<char>& node : nodes) subtrees.push_back(node.range);
  return subtrees;
}

// The subtrees of all members, in the order of shards; all members call it. `own`: those of this
// member, each of `bytes` bytes, end to end. Errors are Group::AllGather()'s.
Result<std::vector<std::byte>> GatherSubtrees(Group& group, int shards,
                                              std::span<const std::byte> own, std::size_t bytes,
                                              Timeout timeout = {});

}  // namespace muster::collectives
