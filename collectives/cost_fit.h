// The figures of the cost model that measured times fit best.
//
// Threading: pure functions.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/cost_model.h"

namespace muster::collectives {

// How long an all-reduce took.
struct Timing {
  int members = 2;
  std::size_t bytes = 0;
  double seconds = 0;
};

// Least squares of relative errors, no figure below 0. What times of one algorithm cannot tell
// apart, like a ring's rounds and messages, stays near the default's proportion; the cost of adding
// is given, because it looks like that of bytes on the way. All seconds are above 0.
Costs FitCosts(Algorithm algorithm, std::span<const Timing> timings, double reduced_byte);

}  // namespace muster::collectives
