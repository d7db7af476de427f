// The run()s of one strategy that go on, and what is looked after between them (modules).
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "common/base/mutex.h"

namespace muster::internal {

// Something that a program may change between run()s and that replicas use in them. Both calls are
// made under the lock of Runs, by the thread that begins the first run() or ends the last one.
class BetweenRuns {
 public:
  virtual ~BetweenRuns() = default;
  // What was done to it since the last run() is taken over; what it throws, run() throws.
  virtual void BeginRun() = 0;
  // Notes what it is now.
  virtual void EndRun() = 0;
};

// Threading: any thread.
class Runs {
 public:
  // While it lives, a run() goes on. When it is the only one, what was added is told: BeginRun()
  // first, EndRun() at the end.
  class Scope {
   public:
    explicit Scope(Runs& runs) : runs_(runs) { runs_.Begin(); }
    ~Scope() { runs_.End(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Runs& runs_;
  };

  // Looked after until it ends; Runs does not keep it alive.
  void Add(const std::shared_ptr<BetweenRuns>& one);
  bool any() const { return active_.load(std::memory_order_acquire) > 0; }

 private:
  void Begin();
  void End();

  Mutex mutex_;
  std::atomic<int> active_{0};  // written with mutex_ held
  std::vector<std::weak_ptr<BetweenRuns>> added_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::internal
