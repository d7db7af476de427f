// A reduction over replicas that was begun, and goes on beside the replica function:
// ReplicaContext::start_all_reduce().
//
// Threading: any thread; copies stand for the same reduction. Lifetime: it may outlive the replica
// function, and the strategy, whose destructor returns when it has ended.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "strategy/base/torch.h"

namespace muster {

class ReplicaContext;

template <class T>
class Started {
 public:
  // Returns when the reduction has ended, with its result; again the same. Throws what the
  // synchronous call would.
  T wait() const { return wait_(); }
  // Whether wait() returns, or throws, at once.
  bool done() const { return done_(); }

 private:
  friend class ReplicaContext;
  Started(std::function<T()> wait, std::function<bool()> done)
      : wait_(std::move(wait)), done_(std::move(done)) {}

  std::function<T()> wait_;
  std::function<bool()> done_;
};

namespace internal {

// The same for cross-device ops: what their all_reduce() gives, now or later.
struct StartedTensors {
  std::function<std::vector<torch::Tensor>()> wait;
  std::function<bool()> done;

  static StartedTensors ready(std::vector<torch::Tensor> results) {
    return {[results = std::move(results)] { return results; }, [] { return true; }};
  }
};

}  // namespace internal
}  // namespace muster
