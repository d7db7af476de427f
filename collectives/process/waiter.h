// How a member waits inside an operation: what ends its wait beside what it waits for.
#pragma once

#include <atomic>
#include <cstdint>

#include <unistd.h>

#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::collectives {

// Threading: fields are set before the operation; `over` is set by the group's watch.
struct Waiter {
  // The group is over: stop waiting.
  const std::atomic<bool>* over = nullptr;
  // Readable when the group is over.
  int wake = -1;
  TimePoint deadline = TimePoint::max();
  // An eventfd of the group's watch: a wait that lasts is made known to the others.
  int lasts = -1;

  // After a wait of kPatience.
  void SayThatItLasts() const {
    const std::uint64_t one = 1;
    (void)!::write(lasts, &one, sizeof(one));
  }
  static constexpr Millis kPatience{50};
};

}  // namespace muster::collectives
