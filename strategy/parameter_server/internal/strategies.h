// The ParameterServerStrategies of this process, which processes of one program make in the same
// order.
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace muster {

class Strategy;

namespace internal {

// From 1, in the order in which they were made; 0: none of them.
std::uint64_t NumberOf(const Strategy& strategy);
// The one that has the number here; else the last that was made and is there.
//   FAILED_PRECONDITION: there is none.
Strategy& StrategyOfNumber(std::uint64_t number);
// How many replicas each has, in the order of their numbers; 0: it is gone.
std::vector<std::int32_t> ReplicasOfStrategies();

}  // namespace internal
}  // namespace muster
