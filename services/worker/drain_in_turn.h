// The end of a daemon whose parts end one after another.
//
// Threading: that of the parts. Lifetime: the clock outlives them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/scheduler.h"

namespace muster::services {

// Ends within about `limit`, and says so.
using DrainPart = std::function<void(Millis limit, std::function<void()> then)>;

// What each has at least, of a grace that is long.
inline constexpr Millis kLeastDrain{5'000};

// Runs the parts in turn, each within what those before it have left of `grace`, which counts from
// `begin`. Where they have left less than a tenth of it, it has that, or kLeastDrain where that is
// less: so all together take little longer than `grace`, and a supervisor is told how long.
inline void DrainInTurn(const Clock& clock, TimePoint begin, Millis grace,
                        std::vector<DrainPart> parts, std::function<void()> done,
                        std::size_t next = 0) {
  if (next == parts.size()) return done();
  const auto spent = std::chrono::duration_cast<Millis>(clock.Now() - begin);
  const Millis limit = std::max(grace - spent, std::min(grace / 10, kLeastDrain));
  const DrainPart part = parts[next];
  part(limit, [&clock, begin, grace, parts = std::move(parts), done = std::move(done), next] {
    DrainInTurn(clock, begin, grace, parts, done, next + 1);
  });
}

}  // namespace muster::services
