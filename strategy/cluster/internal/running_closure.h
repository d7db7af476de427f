// The closure that a thread works for, as the function's own or as one of the replicas that it
// runs; for rooms above this one that keep something as long as it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "dispatch/functions.h"

#include "common/base/mutex.h"

namespace muster::internal {

// Threading: any thread of the closure: the function's own, and those of replicas. What is not
// guarded does not change once the function has begun; of the context, replicas use what is const,
// and stop_token() with the mutex.
// Lifetime: that of the function's call.
struct RunningClosure {
  dispatch::ClosureContext& context;
  // The synchronous step that it is of; 0: of none.
  std::uint64_t step = 0;
  Mutex mutex = {};
  // What is kept, and what is called when the function has returned, before its result is sent;
  // what that throws is the closure's error.
  std::shared_ptr<void> kept MUSTER_GUARDED_BY(mutex) = nullptr;
  std::function<void()> at_end MUSTER_GUARDED_BY(mutex) = nullptr;
};

// Null: this thread works for none.
RunningClosure* running_closure();

}  // namespace muster::internal
