// The closure that a thread works for. Replicas' threads work for that of the thread that has
// called run().
//
// Closures are of a room above (strategy/cluster/internal/running_closure.h): here they are handed
// on, and nobody looks into them.
#pragma once

namespace muster::internal {

struct RunningClosure;

// While it lives, this thread works for the closure; null: for none.
// Lifetime: the closure outlives it.
class ClosureHere {
 public:
  explicit ClosureHere(RunningClosure* closure);
  ~ClosureHere();
  ClosureHere(const ClosureHere&) = delete;
  ClosureHere& operator=(const ClosureHere&) = delete;

  // Null: this thread works for none.
  static RunningClosure* Current();

 private:
  RunningClosure* const before_;
};

}  // namespace muster::internal
