// One execution of a closure, as a number that never repeats: the coordinator's epoch in 32 bits,
// the driver's incarnation in 16, and how often this closure has been handed out in 16. The first
// two fence a driver that was given up, the last a worker.
#pragma once

#include <cstdint>
#include <limits>

#include "common/base/ids.h"

namespace muster::dispatch {

// A closure that was handed out this often is given up: the number would repeat.
inline constexpr std::uint16_t kMostExecutions = std::numeric_limits<std::uint16_t>::max();

constexpr Attempt MakeAttempt(Epoch epoch, std::uint16_t incarnation, std::uint16_t executions) {
  return {epoch, static_cast<std::uint32_t>(incarnation) << 16 | executions};
}

constexpr std::uint16_t ExecutionsOf(Attempt attempt) {
  return static_cast<std::uint16_t>(attempt.value());
}

}  // namespace muster::dispatch
