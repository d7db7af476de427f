// Chips of a box in the order of a ring: neighbours in it are neighbours in the box.
//
// Threading: pure functions.
#pragma once

#include <array>
#include <vector>

namespace muster::internal {

using Chip = std::array<int, 3>;  // x, y, z

// All chips of a box of these sizes, each at least 1. A box that is long in one dimension alone is
// a line; with an odd size in one of several there is no ring: x runs fastest, then y, then z.
std::vector<Chip> ring_of(const Chip& sizes);
// Whether ring_of() has to do without a ring.
bool lacks_ring(const Chip& sizes);

}  // namespace muster::internal
