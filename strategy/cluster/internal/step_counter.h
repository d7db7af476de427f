// Numbers the closures of steps (ClusterCoordinator::schedule_step) as they are scheduled.
//
// A step has so many closures as the rule says, or fewer where the driver has waited for all of
// them: then it is over, and the next closure begins a new one. Threading: any thread; one closure
// is scheduled at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/step_rule.h"

namespace muster::internal {

class StepCounter {
 public:
  // Before the first closure is scheduled. `on_end` is told the step that comes next when all
  // before it have ended.
  //   kFailedPrecondition: there is another rule, or a closure has been scheduled without one.
  Status SetRule(const StepRule& rule, std::function<void(std::uint64_t next)> on_end) {
    const MutexLock lock(mutex_);
    if (rule_.gradients == rule.gradients && rule_.staleness == rule.staleness) return Ok();
    if (rule_.bounded() || step_ > 1 || in_step_ > 0) {
      return FailedPrecondition(
          "steps of this program's closures have been scheduled with another consistency: there is "
          "one for each program, given before the first of them");
    }
    rule_ = rule;
    on_end_ = std::move(on_end);
    return Ok();
  }

  // Calls schedule(step, staged) for the next closure: its step, and whether the step is
  // synchronous. If that throws, its place is the next one's.
  template <class Schedule>
  auto Next(const Schedule& schedule) {
    const MutexLock lock(mutex_);
    const bool full = in_step_ == rule_.gradients;
    const std::uint64_t step = full ? step_ + 1 : step_;
    auto scheduled = schedule(step, rule_.synchronous());
    step_ = step;
    in_step_ = full ? 1 : in_step_ + 1;
    return scheduled;
  }

  // The driver has waited for closures: if `all_ended`, the step that they are of is over. What
  // `on_end` throws; it is then told at the next call.
  template <class AllEnded>
  void End(const AllEnded& all_ended) {
    std::function<void(std::uint64_t)> on_end;
    std::uint64_t next = 0;
    {
      const MutexLock lock(mutex_);
      const bool any = in_step_ > 0 || told_ < ended_;
      if (!rule_.bounded() || !any || !all_ended()) return;
      if (in_step_ > 0) ended_ = ++step_;
      in_step_ = 0;
      next = ended_;
      on_end = on_end_;
    }
    if (on_end) on_end(next);
    const MutexLock lock(mutex_);
    told_ = std::max(told_, next);
  }

 private:
  Mutex mutex_;
  StepRule rule_ MUSTER_GUARDED_BY(mutex_);
  std::function<void(std::uint64_t)> on_end_ MUSTER_GUARDED_BY(mutex_);
  // The step that is being filled, and how many closures it has.
  std::uint64_t step_ MUSTER_GUARDED_BY(mutex_) = 1;
  std::uint64_t in_step_ MUSTER_GUARDED_BY(mutex_) = 0;
  // All steps before these are over: as End() has found, and as `on_end_` was told.
  std::uint64_t ended_ MUSTER_GUARDED_BY(mutex_) = 1;
  std::uint64_t told_ MUSTER_GUARDED_BY(mutex_) = 1;
};

}  // namespace muster::internal
