// How long a dead daemon rests before it is started again.
#pragma once

#include <algorithm>
#include <chrono>

namespace muster::cli {

// Doubles with each early death. A life ten times as long as the last rest forgives all of them,
// and so does one of kStable: what worked for a while and was killed is not what cannot start.
class Backoff {
 public:
  using Millis = std::chrono::milliseconds;
  static constexpr Millis kFirst{200};
  static constexpr Millis kMost{10'000};
  static constexpr Millis kStable{30'000};
  // Shorter lives forgive nothing.
  static constexpr Millis kWorked{5'000};

  // The rest after a process that lived that long.
  Millis Next(Millis lived) {
    if (lived >= std::min(kStable, std::max(10 * last_, kWorked))) next_ = kFirst;
    last_ = next_;
    next_ = std::min(next_ * 2, kMost);
    return last_;
  }

 private:
  Millis last_{0};
  Millis next_ = kFirst;
};

}  // namespace muster::cli
