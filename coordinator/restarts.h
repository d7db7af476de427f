// How often what a user runs begins anew by itself, and after which pause.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/scheduler.h"

namespace muster::coordinator {

// Where a spec does not say.
inline constexpr std::uint32_t kDefaultRestarts = 3;

// Before the nth: 0.5 s, doubled each time, 16 s at most.
inline Millis RestartPause(std::uint32_t n) { return Millis(250 << std::min(n, 6U)); }

}  // namespace muster::coordinator
