// How far the closures of a program's steps (ClusterCoordinator::schedule_step) may run ahead of
// each other, when what a closure writes is sent, and where variables go. Threading: values.
#pragma once

#include <cstdint>
#include <optional>

namespace muster {

struct Consistency {
  // A closure of step t begins when all of steps 1 to t - 1 - staleness have ended. Nothing: at any
  // time. 0: in synchronous training, where the gradients of a step are summed in the order of
  // scheduling and are one update.
  std::optional<std::uint32_t> staleness = std::nullopt;

  static constexpr Consistency async() { return {}; }
  static constexpr Consistency synchronous() { return {.staleness = 0}; }
  static constexpr Consistency bounded(std::uint32_t staleness) { return {.staleness = staleness}; }
};

// Which server a shard goes to when its variable is made.
enum class Placement {
  // In turn, as variables are made.
  kRoundRobin,
  // The one with the fewest bytes of this program's variables, the first of several.
  kByBytes,
};

enum class Writes {
  // Together, when its function has returned.
  kTogether,
  // Each when it is made.
  kImmediate,
};

}  // namespace muster
