#include "strategy/core/internal/runs.h"

namespace muster::internal {

void Runs::Add(const std::shared_ptr<BetweenRuns>& one) {
  const MutexLock lock(mutex_);
  std::erase_if(added_, [](const auto& other) { return other.expired(); });
  added_.push_back(one);
}

void Runs::Begin() {
  const MutexLock lock(mutex_);
  if (active_.load(std::memory_order_relaxed) == 0) {
    for (const auto& weak : added_) {
      if (const auto one = weak.lock()) one->BeginRun();
    }
  }
  active_.fetch_add(1, std::memory_order_release);
}

void Runs::End() {
  const MutexLock lock(mutex_);
  if (active_.load(std::memory_order_relaxed) == 1) {
    for (const auto& weak : added_) {
      if (const auto one = weak.lock()) one->EndRun();
    }
  }
  active_.fetch_sub(1, std::memory_order_release);
}

}  // namespace muster::internal
