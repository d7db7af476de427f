// Which buffers travel together, and which part of them each member takes.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace muster::collectives {

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const Range&) const = default;
};

// Cuts buffers, given by their sizes in bytes, into packs of indices, in order: a pack closes once
// it holds more than `bytes_per_pack`. One pack for everything when `bytes_per_pack` is 0 or a
// size is unknown. No packs for no buffers.
std::vector<std::vector<std::size_t>> GroupBySize(std::span<const std::optional<std::size_t>> bytes,
                                                  std::size_t bytes_per_pack);

// Part `part` of `count` elements in `parts` parts that differ by at most `grain`; borders are
// multiples of `grain`, so that two members never write into one cache line.
Range SliceOf(std::size_t count, std::size_t part, std::size_t parts, std::size_t grain = 64);

// Part `part` when `count` elements are cut into `parts` equal parts and the last takes the rest.
Range SplitOf(std::size_t count, std::size_t part, std::size_t parts);

// A piece of one buffer.
struct Piece {
  std::size_t buffer = 0;
  Range range;
  bool operator==(const Piece&) const = default;
};

// What of each buffer lies in `range` of all of them laid end to end.
std::vector<Piece> PiecesOf(std::span<const std::size_t> counts, Range range);

}  // namespace muster::collectives
