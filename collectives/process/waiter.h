// How a member waits inside an operation: what ends its wait beside what it waits for.
#pragma once

#include <atomic>
#include <span>

#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::collectives {

// Hears of a wait that lasts, by who waits: `waiting` are the ranks whose bytes are missing.
class LongWait {
 public:
  virtual void OnLong(std::span<const int> waiting) const = 0;

 protected:
  ~LongWait() = default;
};

// Threading: fields are set before the operation; `over` is set by the group's watch.
struct Waiter {
  // The group is over: stop waiting.
  const std::atomic<bool>* over = nullptr;
  // Readable when the group is over.
  int wake = -1;
  TimePoint deadline = TimePoint::max();
  // Called after a wait of kPatience; null: nobody is interested.
  const LongWait* lasts = nullptr;

  void SayThatItLasts(std::span<const int> waiting) const {
    if (lasts != nullptr) lasts->OnLong(waiting);
  }
  static constexpr Millis kPatience{50};
};

}  // namespace muster::collectives
