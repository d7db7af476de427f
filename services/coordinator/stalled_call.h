// Ends a call whose peer stands still: for `limit` it has neither sent what is waited for nor taken
// what was written. Without it such a call would hold its file and its place for ever.
//
// Threading: any thread; Waits() and Went() in turn.
// Lifetime: `strand` outlives it; `context` does until Waits() has been answered for the last time
// and this is destroyed.
#pragma once

#include <memory>

#include <grpcpp/server_context.h>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"

namespace muster::coordinator {

class StalledCall {
 public:
  StalledCall(Scheduler& strand, grpc::CallbackServerContext* context, Millis limit)
      : strand_(strand), limit_(limit), state_(std::make_shared<State>(context)) {}
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
    timer_ = strand_.RunAfter(limit_, [state = state_, wait] {
      const RecursiveMutexLock lock(state->mutex);
      if (state->wait == wait) state->context->TryCancel();
    });
  }
  // It has ended.
  void Went() {
    {
      const RecursiveMutexLock lock(state_->mutex);
      state_->wait = 0;
    }
    (void)strand_.Cancel(timer_);
  }

 private:
  struct State {
    explicit State(grpc::CallbackServerContext* with) : context(with) {}
    // Cancelling may run the call's own callbacks, which come back here.
    RecursiveMutex mutex;
    grpc::CallbackServerContext* const context;
    std::uint64_t last MUSTER_GUARDED_BY(mutex) = 0;
    std::uint64_t wait MUSTER_GUARDED_BY(mutex) = 0;  // 0: nothing is waited for
  };

  Scheduler& strand_;
  const Millis limit_;
  const std::shared_ptr<State> state_;
  Scheduler::TimerId timer_ = 0;
};

}  // namespace muster::coordinator
