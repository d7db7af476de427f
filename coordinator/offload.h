// Work that blocks (reading and syncing files), away from the strand.
#pragma once

#include <future>
#include <utility>

#include <absl/functional/any_invocable.h>

#include "common/base/scheduler.h"

namespace muster::coordinator {

class Offload {
 public:
  using Function = absl::AnyInvocable<void()>;
  virtual ~Offload() = default;
  // Runs `work` elsewhere, then `then` on the strand; one piece of work after another.
  virtual void Run(Function work, Function then) = 0;
};

// One thread of its own. Lifetime: `strand` outlives it.
class ThreadOffload : public Offload {
 public:
  explicit ThreadOffload(Scheduler& strand) : strand_(strand) {}
  void Run(Function work, Function then) override {
    thread_.Post([this, work = std::move(work), then = std::move(then)]() mutable {
      work();
      strand_.Post(std::move(then));
    });
  }
  // Waits for all that was given to it; nothing more may come.
  void Finish() {
    std::promise<void> done;
    thread_.Post([&done] { done.set_value(); });
    done.get_future().wait();
    thread_.Stop();
  }
  // Waits for the running piece; drops the others.
  void Stop() { thread_.Stop(); }

 private:
  Scheduler& strand_;
  ThreadScheduler thread_;
};

// For tests: at once, on the strand.
class InlineOffload : public Offload {
 public:
  explicit InlineOffload(Scheduler& strand) : strand_(strand) {}
  void Run(Function work, Function then) override {
    strand_.Post([work = std::move(work), then = std::move(then)]() mutable {
      work();
      then();
    });
  }

 private:
  Scheduler& strand_;
};

}  // namespace muster::coordinator
