// Wakes threads that wait until a step has come so far. Costs a load where none waits.
// Threading: any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <absl/functional/function_ref.h>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"

namespace muster::ps {

class StepSignal {
 public:
  // What `met` looks at has changed.
  void Notify() {
    if (waiting_.load() == 0) return;
    {
      const MutexLock lock(mutex_);
      ++changes_;
    }
    changed_.notify_all();
  }

  // Calls `met` now and after each change, until it is true. False: it was not until then.
  bool WaitUntil(TimePoint until, absl::FunctionRef<bool()> met) {
    ++waiting_;
    const bool is_met = Wait(until, met);
    --waiting_;
    return is_met;
  }

 private:
  bool Wait(TimePoint until, absl::FunctionRef<bool()> met) {
    for (;;) {
      std::uint64_t seen = 0;
      {
        const MutexLock lock(mutex_);
        seen = changes_;
      }
      if (met()) return true;
      const MutexLock lock(mutex_);
      while (changes_ == seen) {
        if (!changed_.wait_until(mutex_, until) && changes_ == seen) return false;
      }
    }
  }

  std::atomic<std::uint32_t> waiting_{0};
  Mutex mutex_;
  Condition changed_;
  std::uint64_t changes_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace muster::ps
