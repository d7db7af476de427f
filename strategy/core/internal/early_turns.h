// Whose sums may begin in the backward passes of a strategy that has several optimizers
// (strategy/train/internal/early_sums.h).
//
// A backward pass may come to the parameters of several optimizers, on each replica in an order of
// its own, and a replica without examples makes none; but what is begun has one order everywhere.
// So the sums of one optimizer begin, of the one that is expected to step next: who stepped next
// the last time. All replicas make the same steps, so all expect the same one. When another one
// steps, what some of them may have begun is begun by all and let go of; whoever is often expected
// in vain is no longer expected.
//
// Threading: any thread; each copy's calls are made by its replica.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "common/base/mutex.h"

namespace muster {

class ReplicaContext;

namespace internal {

class EarlyTurns {
 public:
  class Sums {
   public:
    virtual ~Sums() = default;
    // Begins what other replicas may have begun, and forgets it all.
    virtual void Discard(ReplicaContext& replica) = 0;
  };

  // The number of an optimizer, which all processes make in the same order.
  int Add();
  // The sums of `optimizer` on replica `copy` of this process, if they begin early.
  void Register(int optimizer, int copy, const std::shared_ptr<Sums>& sums);
  bool Expects(int optimizer, int copy) const;
  // `optimizer` is about to sum its gradients; called by all replicas.
  void Step(int optimizer, ReplicaContext& replica);

 private:
  static constexpr int kNobody = -1;
  // So much counts a time in vain, against one for each other time; with so much nobody is expected
  // any more.
  static constexpr int kInVain = 4;
  static constexpr int kMostInVain = 16;
  struct Copy {
    int last = kNobody;
    int expected = kNobody;
    std::shared_ptr<Sums> sums;  // of the expected one, also when its optimizer is gone
    std::map<int, int> next;     // who stepped behind whom
    std::map<int, int> in_vain;
  };

  mutable Mutex mutex_;
  int optimizers_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<int, Copy> copies_ MUSTER_GUARDED_BY(mutex_);
  // By optimizer and copy.
  std::map<std::pair<int, int>, std::weak_ptr<Sums>> sums_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace internal
}  // namespace muster
