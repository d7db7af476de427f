// A time limit which the calls share that one call makes one after another.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "common/base/scheduler.h"

namespace muster {

// `limit` from now on; TimePoint::max(), without an end, where the clock does not go so far.
inline TimePoint After(Millis limit) {
  const TimePoint now = std::chrono::steady_clock::now();
  return limit < std::chrono::floor<Millis>(TimePoint::max() - now) ? now + limit
                                                                    : TimePoint::max();
}

class TimeLeft {
 public:
  // From now on. None, or 0: without an end.
  explicit TimeLeft(std::optional<Millis> limit) {
    if (limit.has_value() && limit->count() > 0) end_ = After(*limit);
  }

  // What the next call has. One that comes too late has a moment, and is the one that says so.
  std::optional<Millis> operator()() const {
    if (!end_.has_value()) return std::nullopt;
    const auto left = *end_ - std::chrono::steady_clock::now();
    return std::max(Millis(1), std::chrono::ceil<Millis>(left));
  }

  // What the first of some callers to come, who do something together, has left.
  template <class Callers>
  static TimeLeft OfFirst(const Callers& callers) {
    TimeLeft first(std::nullopt);
    for (const auto* one : callers) {
      const std::optional<TimePoint>& end = one->left.end_;
      if (end.has_value() && (!first.end_.has_value() || *end < *first.end_)) first.end_ = end;
    }
    return first;
  }

 private:
  std::optional<TimePoint> end_;
};

}  // namespace muster
