// How often the same thing is said: `burst` times at once, then nothing until the interval is over,
// and after that how many were held back.
//
//   if (const auto held = refused_.Ask()) log::Warning("refused {}{}", who, MoreTimes(*held));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"

namespace muster {

// Threading: any thread.
class RateLimit {
 public:
  explicit RateLimit(Millis every, std::uint64_t burst = 1) : every_(every), burst_(burst) {}

  // How many were held back since it was last said; nullopt: hold this one back too.
  std::optional<std::uint64_t> Ask(TimePoint now = std::chrono::steady_clock::now()) {
    const MutexLock lock(mutex_);
    if (!begin_ || now - *begin_ >= every_) {
      begin_ = now;
      said_ = 0;
    }
    if (said_ >= burst_) {
      ++held_;
      return std::nullopt;
    }
    ++said_;
    return std::exchange(held_, 0);
  }

 private:
  const Millis every_;
  const std::uint64_t burst_;
  Mutex mutex_;
  std::optional<TimePoint> begin_ MUSTER_GUARDED_BY(mutex_);  // of the interval
  std::uint64_t said_ MUSTER_GUARDED_BY(mutex_) = 0;          // in it
  std::uint64_t held_ MUSTER_GUARDED_BY(mutex_) = 0;
};

// " (and 37 times more since that was last said)"; nothing for 0.
inline std::string MoreTimes(std::uint64_t held) {
  return held == 0 ? "" : fmt::format(" (and {} times more since that was last said)", held);
}

}  // namespace muster
