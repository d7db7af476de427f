#include "collectives/packing.h"

#include <algorithm>

namespace muster::collectives {

std::vector<std::vector<std::size_t>> GroupBySize(std::span<const std::optional<std::size_t>> bytes,
                                                  std::size_t bytes_per_pack) {
  bool one_pack = bytes_per_pack == 0;
  for (const auto& size : bytes) one_pack = one_pack || !size.has_value();
  std::vector<std::vector<std::size_t>> packs;
  bool open = false;
  std::size_t held = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (!open) {
      packs.emplace_back();
      open = true;
      held = 0;
    }
    packs.back().push_back(i);
    if (one_pack) continue;
    held += *bytes[i];
    open = held <= bytes_per_pack;
  }
  return packs;
}

Range SliceOf(std::size_t count, std::size_t part, std::size_t parts, std::size_t grain) {
  const std::size_t grains = (count + grain - 1) / grain;
  const std::size_t each = grains / parts;
  const std::size_t larger = grains % parts;  // the first `larger` parts take one grain more
  const std::size_t begin = part * each + std::min(part, larger);
  const std::size_t end = begin + each + (part < larger ? 1 : 0);
  return {std::min(count, begin * grain), std::min(count, end * grain)};
}

Range SplitOf(std::size_t count, std::size_t part, std::size_t parts) {
  const std::size_t each = count / parts;
  return {part * each, part + 1 == parts ? count : (part + 1) * each};
}

std::vector<Piece> PiecesOf(std::span<const std::size_t> counts, Range range) {
  std::vector<Piece> pieces;
  std::size_t start = 0;
  for (std::size_t i = 0; i < counts.size() && start < range.end; ++i) {
    const std::size_t begin = std::max(start, range.begin);
    const std::size_t end = std::min(start + counts[i], range.end);
    if (begin < end) pieces.push_back({i, {begin - start, end - start}});
    start += counts[i];
  }
  return pieces;
}

}  // namespace muster::collectives
