#include "collectives/together.h"

#include <algorithm>

#include <fmt/ranges.h>

namespace muster::collectives {

Status CheckSame(std::span<const std::span<const ReduceBuffer>> brought) {
  const auto& first = brought[0];
  for (const ReduceBuffer& buffer : first) {
    if (!Reducible(buffer.type)) {
      return InvalidArgument("all_reduce: {} has no sum; convert it to a number type",
                             muster::NameOf(buffer.type));
    }
  }
  for (std::size_t r = 1; r < brought.size(); ++r) {
    const auto& mine = brought[r];
    if (mine.size() != first.size()) {
      return InvalidArgument("all_reduce: replica {} brings {} tensors, replica 0 {}", r,
                             mine.size(), first.size());
    }
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (mine[i].shape != first[i].shape) {
        return InvalidArgument(
            "Shape mismatch in all_reduce: tensor {} has shape [{}] on replica {}, [{}] on "
            "replica 0",
            i, fmt::join(mine[i].shape, ", "), r, fmt::join(first[i].shape, ", "));
      }
      if (mine[i].type != first[i].type) {
        return InvalidArgument("all_reduce: tensor {} is {} on replica {}, {} on replica 0", i,
                               muster::NameOf(mine[i].type), r, muster::NameOf(first[i].type));
      }
    }
  }
  return Ok();
}

Status CheckSame(std::span<const std::span<const GatherBuffer>> brought, int members) {
  const auto& first = brought[0];
  for (const GatherBuffer& buffer : first) {
    if (buffer.block_bytes.size() == static_cast<std::size_t>(members)) continue;
    return InvalidArgument("all_gather: {} lengths for {} members", buffer.block_bytes.size(),
                           members);
  }
  for (std::size_t r = 1; r < brought.size(); ++r) {
    const auto same = [](const GatherBuffer& one, const GatherBuffer& other) {
      return one.blocks == other.blocks && one.block_bytes == other.block_bytes;
    };
    if (std::ranges::equal(brought[r], first, same)) continue;
    return InvalidArgument("all_gather: replicas 0 and {} bring other tensors than they said", r);
  }
  return Ok();
}

Status CheckRoot(int root, int members) {
  if (root >= 0 && root < members) return Ok();
  return InvalidArgument("broadcast: root {} in a group of {}", root, members);
}

}  // namespace muster::collectives
