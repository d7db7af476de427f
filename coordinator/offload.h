// Work that blocks (reading and syncing files), away from the strand.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <utility>

#include <absl/functional/any_invocable.h>

#include "common/base/lanes.h"
#include "common/base/scheduler.h"

namespace muster::coordinator {

class Offload {
 public:
  using Function = absl::AnyInvocable<void()>;
  virtual ~Offload() = default;
  // Runs `work` elsewhere, then `then` on the strand; one piece of work after another.
  virtual void Run(Function work, Function then) = 0;
};

// In lanes (common/base/lanes.h): work that hangs holds up its own lane alone, and outlives whoever
// has asked for it.
class LaneOffload {
 public:
  using Function = absl::AnyInvocable<void()>;
  virtual ~LaneOffload() = default;
  virtual void Run(const std::string& lane, Function work, Function then) = 0;
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
  // Waits for all that was given to it; nothing more may come. False: it has not ended within
  // `limit`, so neither this object nor what its work touches may be destroyed.
  bool Finish(Millis limit) {
    const auto done = std::make_shared<std::promise<void>>();
    const std::future<void> ended = done->get_future();
    thread_.Post([done] { done->set_value(); });
    if (ended.wait_for(limit) != std::future_status::ready) return false;
    thread_.Stop();
    return true;
  }
  // Waits for the running piece; drops the others.
  void Stop() { thread_.Stop(); }

 private:
  Scheduler& strand_;
  ThreadScheduler thread_;
};

// Lifetime: `strand` outlives Stop().
class ThreadLanes : public LaneOffload {
 public:
  explicit ThreadLanes(Scheduler& strand) : lanes_(strand) {}
  void Run(const std::string& lane, Function work, Function then) override {
    lanes_.Run(lane, std::move(work), std::move(then));
  }
  // Drops what waits, and gives what runs so long to end.
  void Stop(Millis limit) { lanes_.Stop(limit); }

 private:
  Lanes lanes_;
};

}  // namespace muster::coordinator
