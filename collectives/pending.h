// A call of a group that was begun and goes on by itself (Group::Start()).
//
// It is carried out whether or not anybody waits for it, and may outlive the group, which has ended
// it then. Threading: any thread; copies stand for the same call.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace muster::collectives {

class Pending {
 public:
  Pending() : state_(std::make_shared<State>()) {}
  static Pending Ended(const Status& status) {
    Pending pending;
    pending.End(status);
    return pending;
  }

  // Returns when the call has ended, with its status; again the same. What the call has written may
  // be read then. It ends as any call does: with its result, at its deadline, or with the group.
  Status Wait() const {
    const MutexLock lock(state_->mutex);
    while (!state_->status.has_value()) state_->ended.wait(state_->mutex);
    // For another thread: copies share a count that ThreadSanitizer cannot see.
    return MakeStatus(state_->status->code(), Message(*state_->status));
  }
  bool Done() const {
    const MutexLock lock(state_->mutex);
    return state_->status.has_value();
  }

  // For who carries the call out, once.
  void End(const Status& status) const {
    {
      const MutexLock lock(state_->mutex);
      state_->status = status;
    }
    state_->ended.notify_all();
  }

 private:
  struct State {
    Mutex mutex;
    Condition ended;
    std::optional<Status> status MUSTER_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_;
};

}  // namespace muster::collectives
