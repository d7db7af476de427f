// Calls that wait for something to change: a driver's join, a person's watch. Each is asked again
// after every change whether it can answer now, and once more, for the last time, at its limit.
//
// Threading: one strand. Lifetime: `scheduler` outlives it.
#pragma once

#include <functional>
#include <list>
#include <utility>

#include "common/base/scheduler.h"

namespace muster::coordinator {

class ParkedCalls {
 public:
  // Answers and returns true, or returns false to go on waiting. With `last` it must answer.
  using Try = std::function<bool(bool last)>;

  explicit ParkedCalls(Scheduler& scheduler) : scheduler_(scheduler) {}
  ~ParkedCalls() {
    for (const Call& call : calls_) (void)scheduler_.Cancel(call.timer);
    (void)scheduler_.Cancel(recheck_);
  }

  // Tries at once; waits if that was not enough.
  void Add(Millis limit, Try attempt) {
    if (attempt(limit.count() <= 0)) return;
    const auto call = calls_.insert(calls_.end(), Call{std::move(attempt), 0});
    call->timer = scheduler_.RunAfter(limit, [this, call] {
      const Try last = std::move(call->attempt);
      calls_.erase(call);
      (void)last(true);
    });
  }

  bool empty() const { return calls_.empty(); }

  // Something has changed. They are asked soon, not now: the caller may be in the middle of it.
  void Recheck() {
    if (calls_.empty() || posted_) return;
    posted_ = true;
    recheck_ = scheduler_.RunAfter(Millis(0), [this] {
      posted_ = false;
      for (auto call = calls_.begin(); call != calls_.end();) {
        const auto next = std::next(call);
        if (call->attempt(false)) {
          (void)scheduler_.Cancel(call->timer);
          calls_.erase(call);
        }
        call = next;
      }
    });
  }

 private:
  struct Call {
    Try attempt;
    Scheduler::TimerId timer = 0;
  };

  Scheduler& scheduler_;
  std::list<Call> calls_;
  bool posted_ = false;
  Scheduler::TimerId recheck_ = 0;
};

}  // namespace muster::coordinator
