// Members of one process that lie on a torus: an all-reduce as TorusSchedule() has it, done on the
// members' own buffers.
//
// Threading: values, and functions of their arguments alone.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/group.h"
#include "collectives/kernels.h"
#include "collectives/packing.h"
#include "collectives/schedule.h"

namespace muster::collectives {

struct Torus {
  // Its sizes, and each rank's place: ((x * dims[1]) + y) * dims[2] + z ... All places are taken,
  // each once.
  std::vector<int> dims;
  std::vector<int> places;
};

// One all-reduce: who adds and gives which elements when. Of buffers laid end to end, without those
// that would be rounded twice (AddsUp()).
class TorusPlan {
 public:
  // `buffers` are any member's: all bring the same types and shapes.
  TorusPlan(const Torus& torus, Reduction reduction, std::span<const ReduceBuffer> buffers);

  // How many elements there are.
  std::size_t count() const { return count_; }
  // Does elements `slice` of all transfers, for all members, given by rank. Slices that do not
  // overlap may be done at the same time.
  void Reduce(std::span<const std::span<const ReduceBuffer>> brought, Range slice) const;

 private:
  // What of which buffer lies in `range` and in `slice`.
  std::vector<Piece> PiecesWithin(Range range, Range slice) const;

  const Reduction reduction_;
  std::vector<std::size_t> buffers_;  // the numbers of those that take part
  std::vector<std::size_t> counts_;   // and their elements
  std::size_t count_ = 0;
  std::vector<Schedule> schedules_;  // by rank; the peers are ranks, too
};

}  // namespace muster::collectives
