// Ends processes that nobody wants any more: SIGKILL at once, and their end is waited for on a
// thread of its own, one after another. One that cannot die now (its disk does not answer) keeps
// neither the caller nor the deaths of others waiting, but for what is to be done after them.
//
// Threading: any thread. Lifetime: destruction, as Stop(), waits for the end that is waited for
// now.
#pragma once

#include <memory>
#include <utility>

#include <absl/functional/any_invocable.h>
#include <signal.h>

#include "common/base/scheduler.h"

namespace muster::services {

class Burials {
 public:
  // `Process` has Signal(), and a destructor that waits for its end. `after` runs then.
  template <class Process>
  void Bury(std::shared_ptr<Process> process, absl::AnyInvocable<void()> after = [] {}) {
    (void)process->Signal(SIGKILL);  // it may have ended already
    waits_.Post([process = std::move(process), after = std::move(after)]() mutable {
      process.reset();
      after();
    });
  }
  // What waits for its turn is dropped with this object. Idempotent.
  void Stop() { waits_.Stop(); }

 private:
  ThreadScheduler waits_;
};

}  // namespace muster::services
