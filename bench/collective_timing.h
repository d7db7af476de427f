// How an all-reduce between processes is timed, the same way for Muster's groups and for other
// libraries'. All ranks make the same calls; rank 0's clock counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/base/status.h"

namespace muster::bench {

struct CollectiveCalls {
  int size = 1;
  // Sums float32, element by element, from `values` into `sums`.
  std::function<Status(std::span<const float> values, std::span<float> sums)> all_reduce;
  // Where both lie; by default in ordinary memory.
  std::function<Result<std::shared_ptr<float>>(std::size_t count)> memory;
  // Rank 0's number to all.
  std::function<Status(std::int64_t& number)> broadcast;
  std::function<Status()> barrier;
};

// Microseconds and GB/s (tensor bytes by time) for each size, medians of kRounds, and of a barrier;
// rank 0's time on processors, of which waiting is part where it spins. One JSON object in one
// line.
//   kInternal: a wrong sum.
Result<std::string> TimeCollectives(const CollectiveCalls& calls);

}  // namespace muster::bench
