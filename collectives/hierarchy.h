// A reduction over two halves of the members: each half is summed at a member of its own, one of
// the two adds both, and the total goes back the same way. Different buffers take different
// members, so that all of them work at once.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/kernels.h"
#include "collectives/packing.h"
#include "common/base/dtype.h"

namespace muster::collectives {

// The way of buffer i over n members: its root is member i mod n, which sums the half that it is
// in; the partner, (i + n/2) mod n, sums the other.
struct HierarchicalRoute {
  std::size_t root = 0;
  std::size_t partner = 0;
  Range root_members;     // [0, n/2) or [n/2, n)
  Range partner_members;  // the other; empty when there is one member
};

HierarchicalRoute RouteOf(std::size_t buffer, std::size_t members);

// Reduces elements `range` of buffer number `buffer`: sources[m] is member m's, destinations[m]
// gets the result there. A destination may be its own member's source when the types are equal.
void HierarchicalReduce(Reduction reduction, DType type, std::size_t buffer,
                        std::span<const void* const> sources, std::span<void* const> destinations,
                        Range range);

}  // namespace muster::collectives
