// What an all-reduce costs on links of a given speed, by closed forms, and which algorithm is the
// cheapest. The simulation of tests/unit/collectives agrees with the forms up to 1,024 members.
//
// Threading: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "collectives/schedule.h"

namespace muster::collectives {

// In seconds. The defaults are those of TCP on one host, as `muster bench allreduce` measures them;
// its --tune measures all of a machine's own (costs_file.h).
struct Costs {
  double round = 12e-6;         // from the first byte sent until the peer goes on with it
  double message = 3e-6;        // at its sender, whatever its length
  double byte = 0.5e-9;         // on the way, for each byte sent
  double reduced_byte = 1e-10;  // for each byte that is added
};

// On one kind of link, where each algorithm may have figures of its own.
class AlgorithmCosts {
 public:
  AlgorithmCosts() = default;
  // The same for all.
  AlgorithmCosts(const Costs& costs) { each_.fill(costs); }  // NOLINT(google-explicit-constructor)

  Costs& of(Algorithm algorithm) { return each_[static_cast<std::size_t>(algorithm)]; }
  const Costs& of(Algorithm algorithm) const { return each_[static_cast<std::size_t>(algorithm)]; }

 private:
  std::array<Costs, kAlgorithms.size()> each_;
};

// TCP, and Unix sockets within a host.
enum class LinkKind : unsigned char { kTcp, kUnix };
inline constexpr std::size_t kLinkKinds = 2;
struct LinkCosts {
  std::array<AlgorithmCosts, kLinkKinds> of_kind;

  const AlgorithmCosts& of(LinkKind kind) const { return of_kind[static_cast<std::size_t>(kind)]; }
};

// Time of an all-reduce of `bytes` on each of `members`.
double PredictedSeconds(Algorithm algorithm, int members, std::size_t bytes, const Costs& costs);

// The same on a torus of these sizes (TorusSchedule()): a ring along each dimension, each with the
// part of the bytes that the rings before have left to a member. Nothing is chosen by it:
// docs/collectives.md tells by it what a torus is worth, and the schedule is tested against it.
double PredictedTorusSeconds(std::span<const int> dims, std::size_t bytes, const Costs& costs);

// The cheapest. `only_direct`: elements whose sums are made in another type than they have; rounds
// that add to what was rounded would give another result.
Algorithm Choose(int members, std::size_t bytes, bool only_direct,
                 const AlgorithmCosts& costs = {});

}  // namespace muster::collectives
