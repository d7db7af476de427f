// Threads that greet who connects, one each: who connects and says nothing holds up nobody else.
//
// Threading: one thread; Keep() is the guest's own. Lifetime: guests end before.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/thread_annotations.h"
#include "common/net/fd.h"
#include "common/net/socket.h"

namespace muster::net {

class Greeters {
 public:
  // A connection that is greeted.
  class Guest {
   public:
    Guest(Greeters& greeters, Fd socket) : greeters_(greeters), socket_(std::move(socket)) {}
    // It stays: from here on nobody hangs up on it. False: somebody has.
    [[nodiscard]] bool Keep();

   private:
    friend class Greeters;
    void HangUp();
    // Its thread has greeted, and ends.
    void Leave();
    bool IsOver();

    Greeters& greeters_;
    const TimePoint begun_ = std::chrono::steady_clock::now();
    Fd socket_ MUSTER_GUARDED_BY(greeters_.mutex_);  // invalid: it stays, or has been hung up on
    bool over_ MUSTER_GUARDED_BY(greeters_.mutex_) = false;
    std::thread thread_;
  };
  using Greet = std::function<void(Accepted accepted, Guest& guest)>;

  // At most `most` at a time. When one more comes, the one that has been at it longest gives way,
  // as soon as it has had `patience`.
  Greeters(std::size_t most, Millis patience) : most_(most), patience_(patience) {}
  ~Greeters() { End(); }
  Greeters(const Greeters&) = delete;
  Greeters& operator=(const Greeters&) = delete;

  // Runs `greet` in a thread of its own, which ends soon when its peer hangs up. Waits for room, at
  // most `patience`. A connection for which there is no thread or descriptor is closed.
  void Begin(Accepted accepted, Greet greet);
  // Hangs up on those who are still greeted, and waits for their threads.
  void End();

 private:
  // Room for one more. False: those that were hung up on are not gone yet.
  bool MakeRoom();

  const std::size_t most_;
  const Millis patience_;
  Mutex mutex_;
  Condition ended_;
  std::list<Guest> guests_;  // the calling thread's
};

}  // namespace muster::net
