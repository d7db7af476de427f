// When files of no use are looked at again although they have not changed: what was wrong may pass
// by itself (no descriptors were left, a date has not come yet, others could read the key).
//
// Threading: one thread at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "common/base/status.h"

namespace muster::tls {

class Retry {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Between two attempts: the first, and what doubling ends at.
  static constexpr std::chrono::milliseconds kFirst{500};
  static constexpr std::chrono::milliseconds kLast{16'000};

  bool Due(Time now) const { return failed_.has_value() && now >= next_; }
  // The files have changed, or are good: what comes is told again.
  void Reset() { *this = Retry(); }
  // An attempt has failed. True: with another kind of reason than the one before, so it is told.
  bool Failed(StatusCode code, Time now) {
    const bool news = failed_ != code;
    failed_ = code;
    next_ = now + pause_;
    pause_ = std::min(pause_ * 2, kLast);
    return news;
  }

 private:
  std::optional<StatusCode> failed_;
  Time next_{};
  std::chrono::milliseconds pause_ = kFirst;
};

}  // namespace muster::tls
