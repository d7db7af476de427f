// Ends a call whose peer stands still: for `limit` it has neither sent what is waited for nor taken
// what was written. Without it such a call would hold its file and its place for ever.
//
// Threading: any thread; Waits() and Went() in turn.
// Lifetime: `timers` outlives it; what `cancel` reaches does until Waits() has been answered for
// the last time and this is destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"

namespace muster::rpc {

class StalledCall {
 public:
  // `cancel` ends the call, and may run its callbacks.
  StalledCall(Scheduler& timers, Millis limit, std::function<void()> cancel)
      : timers_(timers), limit_(limit), state_(std::make_shared<State>(std::move(cancel))) {}
  // No call is ended after this.
  ~StalledCall() { Went(); }
  StalledCall(const StalledCall&) = delete;
  StalledCall& operator=(const StalledCall&) = delete;

  // A read or a write begins.
  void Waits() {
    std::uint64_t wait = 0;
    {
      const RecursiveMutexLock lock(state_->mutex);
      wait = state_->wait = ++state_->last;
    }
    timer_ = timers_.RunAfter(limit_, [state = state_, wait] {
      const RecursiveMutexLock lock(state->mutex);
      if (state->wait != wait) return;
      state->ended = true;
      state->cancel();
    });
  }
  // It has ended.
  void Went() {
    {
      const RecursiveMutexLock lock(state_->mutex);
      state_->wait = 0;
    }
    (void)timers_.Cancel(timer_);
  }
  // Whether this has ended the call.
  bool ended() const {
    const RecursiveMutexLock lock(state_->mutex);
    return state_->ended;
  }

 private:
  struct State {
    explicit State(std::function<void()> with) : cancel(std::move(with)) {}
    // Cancelling may run the call's own callbacks, which come back here.
    RecursiveMutex mutex;
    const std::function<void()> cancel;
    std::uint64_t last MUSTER_GUARDED_BY(mutex) = 0;
    std::uint64_t wait MUSTER_GUARDED_BY(mutex) = 0;  // 0: nothing is waited for
    bool ended MUSTER_GUARDED_BY(mutex) = false;
  };

  Scheduler& timers_;
  const Millis limit_;
  const std::shared_ptr<State> state_;
  Scheduler::TimerId timer_ = 0;
};

}  // namespace muster::rpc
