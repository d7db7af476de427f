// How many closures a worker may have at a time: enough that it never waits for the link, few
// enough that little has to run again, or waits behind a long one.
//
// What is in flight covers two round trips: with run time r, round trip t and n closures at a time
// that is n + 2 n t / r. Threading: not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/base/ids.h"
#include "common/base/scheduler.h"

namespace muster::dispatch {

struct CreditOptions {
  // Bounds, but at least one more than the worker runs at a time: its input is read ahead.
  std::uint32_t least = 2;
  std::uint32_t most = 256;
};

class Credit {
 public:
  Credit() = default;
  Credit(CreditOptions options, std::uint32_t slots)
      : slots_(std::max<std::uint32_t>(slots, 1)),
        least_(std::max(options.least, slots_ + 1)),
        most_(std::max(options.most, least_)),
        credit_(least_) {}

  std::uint32_t value() const { return credit_; }

  // A closure goes to a worker that has none: what its result needs beyond its run is the link's.
  void OnSentToIdle(ClosureId closure, TimePoint now) {
    probe_ = closure;
    probe_at_ = now;
  }
  void OnResult(ClosureId closure, std::chrono::nanoseconds run, TimePoint now) {
    if (closure == probe_) {
      probe_ = ClosureId();
      OnRoundTrip(now - probe_at_ - run);
    }
    if (run.count() <= 0) return;
    run_ns_ = run_ns_ == 0 ? run.count() : run_ns_ + (run.count() - run_ns_) / 8;
    // A division for each would be more than what it decides for tiny closures.
    if (++samples_ % 8 == 1 || run_ns_ > kLong) Adapt();
  }

 private:
  static constexpr std::int64_t kLong = 100'000;

  void OnRoundTrip(std::chrono::nanoseconds time) {
    const std::int64_t ns = std::max<std::int64_t>(time.count(), 1);
    // One wait for a processor is not the link: down at once, up slowly.
    trip_ns_ = trip_ns_ == 0 || ns < trip_ns_ ? ns : trip_ns_ + (ns - trip_ns_) / 8;
    Adapt();
  }
  void Adapt() {
    if (run_ns_ == 0 || trip_ns_ == 0) return;
    const std::int64_t more = 2 * trip_ns_ * slots_ / std::max<std::int64_t>(run_ns_, 1);
    const std::int64_t wanted = slots_ + std::min<std::int64_t>(more, most_);
    credit_ = static_cast<std::uint32_t>(std::clamp<std::int64_t>(wanted, least_, most_));
  }

  std::uint32_t slots_ = 1;
  std::uint32_t least_ = 2;
  std::uint32_t most_ = 2;
  std::uint32_t credit_ = 0;
  std::uint32_t samples_ = 0;
  std::int64_t run_ns_ = 0;
  std::int64_t trip_ns_ = 0;
  ClosureId probe_;
  TimePoint probe_at_;
};

}  // namespace muster::dispatch
