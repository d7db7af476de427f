// The closure that a thread runs, for rooms above this one that keep something as long as it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "dispatch/functions.h"

namespace muster::internal {

// Threading: the closure's thread. Lifetime: that of the function's call.
struct RunningClosure {
  dispatch::ClosureContext& context;
  // What is kept, and what is called when the function has returned, before its result is sent;
  // what that throws is the closure's error.
  std::shared_ptr<void> kept = nullptr;
  std::function<void()> at_end = nullptr;
  // The synchronous step that it is of; 0: of none.
  std::uint64_t step = 0;
};

// Null: this thread is in none.
RunningClosure* running_closure();

}  // namespace muster::internal
