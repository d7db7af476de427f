// How long a test of the network waits before it fails.
#pragma once

#include <chrono>

#include "common/base/scheduler.h"

namespace muster::net {

inline TimePoint Soon() { return std::chrono::steady_clock::now() + Millis(5'000); }

}  // namespace muster::net
