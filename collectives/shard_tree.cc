#include "collectives/shard_tree.h"

namespace muster::collectives {

Result<std::vector<std::byte>> GatherSubtrees(Group& group, int shards,
                                              std::span<const std::byte> own, std::size_t bytes,
                                              Timeout timeout) {
  std::vector<std::byte> all;
  GatherBuffer buffer{.in = own.data(), .block_bytes = {}};
  std::size_t subtrees = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::size_t theirs = SubtreesOf(ShardsOf(rank, group.size(), shards)).size();
    buffer.block_bytes.push_back(theirs * bytes);
    subtrees += theirs;
  }
  all.resize(subtrees * bytes);
  buffer.out = all.data();
  MUSTER_TRY(group.AllGather({&buffer, 1}, timeout));
  return all;
}

}  // namespace muster::collectives
