// Ctrl-C as a question that can be asked, and as a function that runs.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "common/base/mutex.h"

namespace muster::cli {

// From construction on SIGINT and SIGTERM no longer end the process but raise this; a second one
// ends it at once. Only one may exist, made before any other thread.
// `hang_up`: so does SIGHUP, the end of the terminal, unless it was ignored (nohup). It comes from
// the kernel and from the shell, so a second one is none.
// Threading: any thread; the function of OnRaise runs on a thread of its own.
class Interrupt {
 public:
  explicit Interrupt(bool hang_up = false);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool raised() const { return signal_.load() != 0; }
  // SIGINT, SIGTERM or SIGHUP; 0 before.
  int signal() const { return signal_.load(); }
  // Runs `then` when raised (at once if it was already); an empty one takes it back.
  void OnRaise(std::function<void()> then);

 private:
  void Watch();

  const bool hang_up_;
  std::atomic<int> signal_{0};
  std::atomic<bool> done_{false};
  Mutex mutex_;
  std::function<void()> then_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace muster::cli
