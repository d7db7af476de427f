// "What time is it" and "run this later", behind one seam, so that a test passes an hour in no
// time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include <absl/functional/any_invocable.h>

namespace muster {

using Millis = std::chrono::milliseconds;
using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // For display and for rows on disk only; may jump.
  virtual std::chrono::system_clock::time_point WallNow() const = 0;
};

// Runs functions one after another, never two at a time: the strand that a stateful object lives
// on. Threading: Post, RunAfter and Cancel from any thread; functions run on the scheduler's own.
class Scheduler : public Clock {
 public:
  using Task = absl::AnyInvocable<void()>;
  using TimerId = std::uint64_t;

  // Runs `task` as soon as those posted before it have run.
  virtual void Post(Task task) = 0;
  // Runs `task` once, not before `delay` has passed.
  virtual TimerId RunAfter(Millis delay, Task task) = 0;
  // True when the timer was found and will not run.
  virtual bool Cancel(TimerId timer) = 0;
};

// A scheduler with one thread. Destruction stops it: what has not started is dropped.
class ThreadScheduler : public Scheduler {
 public:
  ThreadScheduler();
  ~ThreadScheduler() override;

  TimePoint Now() const override;
  std::chrono::system_clock::time_point WallNow() const override;
  void Post(Task task) override;
  TimerId RunAfter(Millis delay, Task task) override;
  bool Cancel(TimerId timer) override;
  // Ends the thread after the running function; idempotent; not from the scheduler's own thread.
  void Stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster
