// What the parts of a parameter server call a job's pieces, and the updates of them.
#pragma once

#include <cstdint>

#include "common/base/ids.h"

namespace muster::ps {

// An update: that of a closure, from one of its executions.
struct PushId {
  ClosureId closure{};
  Attempt attempt{};
};

enum class ApplyOutcome { kApplied, kDuplicate };

// What a server needs to know of one of its shards.
struct ShardInfo {
  std::uint32_t variable = 0;
  std::int64_t row_offset = 0;
  std::int64_t rows = 0;
  // Elements of one row: product of the shape without axis 0 (1 for a scalar, which has one row).
  std::int64_t row_elements = 0;
  bool embedding = false;
};

}  // namespace muster::ps
