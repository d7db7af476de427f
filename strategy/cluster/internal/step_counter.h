// Numbers the closures of steps (ClusterCoordinator::schedule_step) as they are scheduled.
//
// A step has so many closures as the rule says, or fewer where the driver has waited for all of
// them: then it is over, and the next closure begins a new one. Threading: any thread; one closure
// is scheduled at a time.
#pragma once

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

  // The driver has waited for closures: if `all_ended`, the step that they are of is over.
  template <class AllEnded>
  void End(const AllEnded& all_ended) {
    std::function<void(std::uint64_t)> on_end;
    std::uint64_t next = 0;
    {
      const MutexLock lock(mutex_);
      if (!rule_.bounded() || in_step_ == 0 || !all_ended()) return;
      next = ++step_;
      in_step_ = 0;
      on_end = on_end_;
    }
    if (on_end) on_end(next);
  }

 private:
  Mutex mutex_;
  StepRule rule_ MUSTER_GUARDED_BY(mutex_);
  std::function<void(std::uint64_t)> on_end_ MUSTER_GUARDED_BY(mutex_);
  // The step that is being filled, and how many closures it has.
  std::uint64_t step_ MUSTER_GUARDED_BY(mutex_) = 1;
  std::uint64_t in_step_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace muster::internal
