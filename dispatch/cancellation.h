// Which closures of an executor's session are cancelled: all up to an id. Who runs one looks, or
// takes a stop token.
//
// Threading: any thread. Callbacks of tokens run on the thread that cancels, without locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <stop_token>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace muster::dispatch {

class Cancellation {
 public:
  bool reached(ClosureId closure) const {
    return closure.value() <= to_.load(std::memory_order_relaxed);
  }
  // All up to `closure`; never fewer than before.
  void CancelTo(ClosureId closure) {
    std::vector<std::stop_source> told;
    {
      const MutexLock lock(mutex_);
      if (reached(closure)) return;
      to_ = closure.value();
      const auto end = sources_.upper_bound(closure);
      for (auto one = sources_.begin(); one != end; ++one) told.push_back(one->second);
    }
    for (std::stop_source& source : told) source.request_stop();
  }
  // Requested when the closure is cancelled, from the beginning if it is; until Forget().
  std::stop_source Watch(ClosureId closure) {
    const MutexLock lock(mutex_);
    std::stop_source& source = sources_[closure];
    if (reached(closure)) source.request_stop();
    return source;
  }
  void Forget(ClosureId closure) {
    const MutexLock lock(mutex_);
    sources_.erase(closure);
  }

 private:
  std::atomic<std::uint64_t> to_{0};
  Mutex mutex_;
  std::map<ClosureId, std::stop_source> sources_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dispatch
