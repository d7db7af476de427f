#include "strategy/core/internal/early_turns.h"

#include "strategy/core/replica_context.h"

namespace muster::internal {

int EarlyTurns::Add() {
  const MutexLock lock(mutex_);
  return optimizers_++;
}

void EarlyTurns::Register(int optimizer, int copy, const std::shared_ptr<Sums>& sums) {
  const MutexLock lock(mutex_);
  std::erase_if(sums_, [](const auto& one) { return one.second.expired(); });
  sums_[{optimizer, copy}] = sums;
}

bool EarlyTurns::Expects(int optimizer, int copy) const {
  const MutexLock lock(mutex_);
  const auto found = copies_.find(copy);
  return found != copies_.end() && found->second.expected == optimizer;
}

void EarlyTurns::Step(int optimizer, ReplicaContext& replica) {
  std::shared_ptr<Sums> in_vain;
  {
    const MutexLock lock(mutex_);
    const int copy = replica.local_replica_id();
    Copy& of = copies_[copy];
    if (of.expected != optimizer && of.sums != nullptr) {
      in_vain = of.sums;
      of.in_vain[of.expected] += kInVain;
    } else if (of.expected == optimizer && of.in_vain[optimizer] > 0) {
      --of.in_vain[optimizer];
    }
    if (of.last != kNobody) of.next[of.last] = optimizer;
    of.last = optimizer;
    of.sums = nullptr;
    of.expected = optimizers_ == 1 ? optimizer : kNobody;
    if (const auto known = of.next.find(optimizer); known != of.next.end()) {
      of.expected = known->second;
    }
    if (of.in_vain[of.expected] >= kMostInVain) of.expected = kNobody;
    if (const auto found = sums_.find({of.expected, copy}); found != sums_.end()) {
      of.sums = found->second.lock();
    }
  }
  if (in_vain != nullptr) in_vain->Discard(replica);
}

}  // namespace muster::internal
