// The ParameterServerStrategies of this process, which processes of one program make in the same
// order.
//
// Threading: any thread.
#pragma once

#include <cstdint>

namespace muster {

class Strategy;

namespace internal {

// From 1, in the order in which they were made; 0: none of them.
std::uint64_t NumberOf(const Strategy& strategy);
// The one that has the number here; else the last that was made and is there.
//   FAILED_PRECONDITION: there is none.
Strategy& StrategyOfNumber(std::uint64_t number);

}  // namespace internal
}  // namespace muster
