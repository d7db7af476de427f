// Which closures may go out when those of a step wait for the steps before it (StepRule): one of
// step t when all that are scheduled of steps up to t - 1 - staleness have ended.
//
// So nothing that is out waits for anything that is not: closures never wait at parameter servers
// for one that is queued, or behind them on the same worker, and whatever happens to workers the
// oldest closure can always go out and end. Closures of no step pass in the order of ids.
//
// Memory grows with the steps that are open. Threading: not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>

#include "common/base/ids.h"
#include "common/base/step_rule.h"

namespace muster::dispatch {

class OpenSteps {
 public:
  explicit OpenSteps(std::uint64_t staleness) : staleness_(staleness) {}
  // For closures that are scheduled from now on.
  void set_staleness(std::uint64_t staleness) { staleness_ = staleness; }

  // The newest closure, and its step, which is never lower than the one before; 0: it is of none.
  // True: Settled() is to be told when it has ended.
  bool Scheduled(ClosureId closure, std::uint64_t step) {
    if (step == 0 || staleness_ == StepRule::kUnbounded) return false;
    if (steps_.empty() || steps_.back().step != step) {
      steps_.push_back({.step = step, .first = closure, .last = closure});
    }
    steps_.back().last = closure;
    ++steps_.back().open;
    return true;
  }
  // One of a step has ended for good, before or after older ones.
  void Settled(ClosureId closure) {
    --std::prev(std::ranges::upper_bound(steps_, closure, {}, &Step::first))->open;
    while (!steps_.empty() && steps_.front().open == 0) steps_.pop_front();
  }

  // All closures that Settled() is to be told of have ended.
  bool empty() const { return steps_.empty(); }

  // The highest closure that may go out.
  ClosureId limit() const {
    if (steps_.size() < 2) return kNoLimit;
    const auto waits =
        std::ranges::upper_bound(steps_, steps_.front().step + staleness_, {}, &Step::step);
    return waits == steps_.end() ? kNoLimit : ClosureId(waits->first.value() - 1);
  }
  // Where a cut may be that has `closure` before it: synchronous steps are not cut through.
  ClosureId CutFrom(ClosureId closure) const {
    if (staleness_ != 0) return closure;
    const auto after = std::ranges::upper_bound(steps_, closure, {}, &Step::first);
    return after == steps_.begin() ? closure : std::max(closure, std::prev(after)->last);
  }

 private:
  static constexpr ClosureId kNoLimit{StepRule::kUnbounded};
  struct Step {
    std::uint64_t step = 0;
    // Closures of others may stand between them, none of other steps.
    ClosureId first;
    ClosureId last;
    std::uint64_t open = 0;
  };

  std::uint64_t staleness_;
  std::deque<Step> steps_;
};

}  // namespace muster::dispatch
