#include "collectives/cost_model.h"

#include <bit>

#include "common/base/status.h"

namespace muster::collectives {

namespace {

// A ring of n members that hold b bytes each.
double RingSeconds(double n, double b, const Costs& costs) {
  const double shared = (n - 1) / n * b;
  return 2 * (n - 1) * (costs.round + costs.message) + 2 * shared * costs.byte +
         shared * costs.reduced_byte;
}

}  // namespace

double PredictedSeconds(Algorithm algorithm, int members, std::size_t bytes, const Costs& costs) {
  if (members <= 1) return 0;
  const double n = members;
  const double b = static_cast<double>(bytes);
  const double shared = (n - 1) / n * b;
  const auto unsigned_members = static_cast<unsigned>(members);
  const bool power = std::has_single_bit(unsigned_members);
  const double floor_log = std::bit_width(unsigned_members) - 1;
  const double p = std::bit_floor(unsigned_members);
  const double step = costs.round + costs.message;
  // Those beyond a power of two bring everything to a partner, and get everything back.
  const double fold = power ? 0 : 2 * (step + b * costs.byte) + b * costs.reduced_byte;
  switch (algorithm) {
    case Algorithm::kDirect:
      return 2 * costs.round + 2 * (n - 1) * costs.message + 2 * shared * costs.byte +
             shared * costs.reduced_byte;
    case Algorithm::kRing:
      return RingSeconds(n, b, costs);
    case Algorithm::kHalvingDoubling:
      return fold + 2 * floor_log * step + (p - 1) / p * b * (2 * costs.byte + costs.reduced_byte);
    case Algorithm::kDoubling:
      return fold + floor_log * (step + b * (costs.byte + costs.reduced_byte));
    case Algorithm::kTree: {
      // Members beyond a power of two are a smaller tree, which is ready no later than the rest:
      // the root adds what it brings last, and sends it the result first.
      const double more = power ? 0 : costs.message + b * (costs.byte + costs.reduced_byte);
      return more + floor_log * (2 * step + b * (2 * costs.byte + costs.reduced_byte));
    }
  }
  MUSTER_INVARIANT(!"an algorithm without a cost");
}

double PredictedTorusSeconds(std::span<const int> dims, std::size_t bytes, const Costs& costs) {
  double seconds = 0;
  double left = static_cast<double>(bytes);
  for (const int dim : dims) {
    seconds += RingSeconds(dim, left, costs);
    left /= dim;
  }
  return seconds;
}

Algorithm Choose(int members, std::size_t bytes, bool only_direct, const AlgorithmCosts& costs) {
  Algorithm best = Algorithm::kDirect;
  if (only_direct) return best;
  double least = PredictedSeconds(best, members, bytes, costs.of(best));
  for (const Algorithm other : kAlgorithms) {
    const double seconds = PredictedSeconds(other, members, bytes, costs.of(other));
    if (seconds >= least) continue;
    best = other;
    least = seconds;
  }
  return best;
}

}  // namespace muster::collectives
