// Work that may block for long (files on a mount that does not answer), away from the strand:
// pieces of one lane run one after another, lanes beside each other, so that one which hangs holds
// up its own lane alone. A lane has a thread only while it has work.
//
// Threading: any thread. Lifetime: the strand outlives Stop(). A piece that hangs outlives even
// this object: work owns, or shares, everything that it touches.
#pragma once

#include <memory>
#include <string>

#include <absl/functional/any_invocable.h>

#include "common/base/scheduler.h"

namespace muster {

class Lanes {
 public:
  using Function = absl::AnyInvocable<void()>;

  explicit Lanes(Scheduler& strand);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Runs `work` on the lane's thread, then `then` on the strand. Where no thread can be had, `then`
  // alone. After Stop() neither.
  void Run(const std::string& lane, Function work, Function then);
  // Drops what has not begun and every `then`, and waits for what runs, but not longer than
  // `limit`. Idempotent.
  void Stop(Millis limit);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace muster
