// Time that stands still until a test moves it.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "common/base/scheduler.h"

namespace muster {

// Functions run inside Advance() and RunReady(). Threading: not thread-safe.
class FakeScheduler : public Scheduler {
 public:
  TimePoint Now() const override { return now_; }
  std::chrono::system_clock::time_point WallNow() const override {
    return std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(now_.time_since_epoch() +
                                                                        wall_set_by_));
  }
  // Somebody sets the host's clock.
  void SetWallBy(Millis by) { wall_set_by_ += by; }
  void Post(Task task) override { (void)RunAfter(Millis(0), std::move(task)); }
  TimerId RunAfter(Millis delay, Task task) override {
    const TimerId id = next_++;
    timers_.emplace(std::pair(now_ + delay, id), std::move(task));
    return id;
  }
  bool Cancel(TimerId timer) override {
    return std::erase_if(timers_,
                         [timer](const auto& each) { return each.first.second == timer; }) != 0;
  }

  // Runs what is due now, including what that posts.
  void RunReady() { Advance(Millis(0)); }
  // Moves time forward, running each timer at its own moment.
  void Advance(Millis by) {
    const TimePoint end = now_ + by;
    while (!timers_.empty() && timers_.begin()->first.first <= end) {
      const auto first = timers_.begin();
      now_ = std::max(now_, first->first.first);
      Task task = std::move(first->second);
      timers_.erase(first);
      std::move(task)();
    }
    now_ = end;
  }

 private:
  TimePoint now_{std::chrono::hours(1)};
  Millis wall_set_by_{0};
  TimerId next_ = 1;
  std::map<std::pair<TimePoint, TimerId>, Task> timers_;
};

}  // namespace muster
