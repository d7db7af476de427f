// What a function learns of where it runs, on a worker.
//
// Threading: the thread that the function was called on, and those of the replicas that it runs.
#pragma once

#include <cstdint>
#include <stop_token>

namespace muster {

// Whether this thread is in a registered function that runs as a closure, or in a replica of one.
bool in_closure();
// The number of the worker that runs it.
//   FAILED_PRECONDITION: not in a closure.
int worker_index();
// Requested when the closure's result is not wanted any more: another closure has failed, or its
// coordinator is gone. A function that runs long looks at it and throws CANCELLED.
//   FAILED_PRECONDITION: not in a closure.
std::stop_token cancellation();
// Throws CANCELLED if that is so.
void throw_if_cancelled();

}  // namespace muster
