// When a thread that waits for a peer should spin before it blocks.
//
// Waking a sleeping core costs 20 to 35 us, more than a small request takes; but a thread that
// spins for nothing takes a core from one that computes, perhaps from the very peer it waits for.
// So a waiter spins while that pays off, and stops for longer and longer while it does not.
#pragma once

#include <atomic>
#include <chrono>

namespace muster::net {

enum class SpinMode {
  kOff,
  // While it pays off.
  kAdaptive,
  // Each wait begins with the whole window.
  kAlways,
};

// Shared by the sockets of one process. Threading: any thread.
class SpinLimit {
 public:
  explicit SpinLimit(int most) : most_(most) {}
  bool Enter() {
    if (now_.fetch_add(1, std::memory_order_relaxed) < most_) return true;
    Leave();
    return false;
  }
  void Leave() { now_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  const int most_;
  std::atomic<int> now_{0};
};

// One socket's share of that. Threading: one thread.
class Spinner {
 public:
  static constexpr std::chrono::nanoseconds kWindow = std::chrono::microseconds(50);

  Spinner(SpinMode mode, SpinLimit* limit) : mode_(mode), limit_(limit) {}

  // True: spin for kWindow at most, then call End().
  bool Begin() {
    if (mode_ == SpinMode::kOff) return false;
    if (mode_ == SpinMode::kAdaptive && pause_left_ > 0) {
      --pause_left_;
      return false;
    }
    return limit_ == nullptr || limit_->Enter();
  }
  // `found`: what was waited for came while spinning.
  void End(bool found) {
    if (limit_ != nullptr) limit_->Leave();
    pause_ = found ? pause_ / 2 : (pause_ == 0 ? 1 : 2 * pause_);
    if (pause_ > kLongestPause) pause_ = kLongestPause;
    if (!found) pause_left_ = pause_;
  }

 private:
  // In waits: at worst one of this many spins for nothing.
  static constexpr int kLongestPause = 512;

  SpinMode mode_;
  SpinLimit* limit_;
  int pause_ = 0;
  int pause_left_ = 0;
};

}  // namespace muster::net
