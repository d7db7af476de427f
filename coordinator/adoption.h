// What is left of a view whose coordinator was lost: which closures those who hold its variables
// have applied (AdoptVariables in proto/muster/v1/cluster.proto). The next coordinator goes on from
// there and runs the others again; docs/decisions/0008-adopted-views.md.
//
// Threading: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace muster::v1 {
class AdoptReport;
}

namespace muster::coordinator {

// first..last, both of them in.
struct ClosureRun {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  bool operator==(const ClosureRun&) const = default;
};
// Ascending, with gaps between them.
using ClosureRuns = std::vector<ClosureRun>;

// Which train closures the shards have applied.
struct AppliedClosures {
  // All of them have: only these are done.
  ClosureRuns everywhere;
  // The highest that at least one of them has. What is below it and not done runs again, or a
  // later cut would be none.
  std::uint64_t highest = 0;
};

// Nothing: no report has a shard.
std::optional<AppliedClosures> AppliedIn(std::span<const v1::AdoptReport> reports);

}  // namespace muster::coordinator
