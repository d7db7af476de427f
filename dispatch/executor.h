// Runs the closures of one driver: an endpoint that drivers connect to, and threads that read, run
// and answer.
//
// K closures run at a time. The thread that reads the link runs what it has read and answers
// itself: a closure alone costs no hand-over. While all run, a further thread keeps the link
// (pings, cancelling).
//
// A driver proves the job's key and brings its epoch and incarnation. One with higher ones takes
// the executor over, what ran for the old one is cancelled; one with lower ones is refused
// (kAborted). Strangers that say nothing hold nobody up: each is greeted on a thread of its own,
// and of many the oldest has to go.
//
// Threading: Serve() on one thread, the rest from any. Lifetime: functions outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "dispatch/functions.h"
#include "dispatch/running_table.h"

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/net/duplex_link.h"
#include "common/net/greeters.h"
#include "common/net/handshake.h"
#include "common/net/socket.h"

namespace muster::dispatch {

class ExecutorSession;

class Executor {
 public:
  struct Options {
    // The token is the job's key.
    net::Identity identity;
    std::uint32_t closures_at_a_time = 1;
    // Its worker's, for functions that ask which one they run on.
    std::uint32_t worker_index = 0;
    net::SpinMode spin = net::SpinMode::kAdaptive;
    // Where what runs is readable for others (RunningTable); empty: nowhere.
    std::string running_file = {};
    // How long a driver may take to prove itself.
    Millis handshake{5'000};
    net::DuplexLink::Options link = {};
    // Closures whose driver is gone are cancelled, and have so long to end.
    Millis cancel_grace{10'000};
    // Then this is told, on some thread, what goes on regardless, and also of a closure that has
    // run for longer than it may, whose error the driver has been sent: it should end the process.
    // Null: such closures are waited for.
    std::function<void(const std::string& what)> on_stuck = {};
    // A closure has arrived and runs when those before it have: its input can be read meanwhile. On
    // the thread that reads; to be quick.
    std::function<void(std::uint32_t function, std::span<const std::byte> arguments)> on_arrival =
        {};
  };

  //   kResourceExhausted: no descriptors are left.
  static Result<std::unique_ptr<Executor>> Create(Options options, const FunctionTable& functions);
  ~Executor();

  // Accepts drivers until Stop(). A driver that breaks the protocol loses its connection, no more;
  // a host without descriptors makes new ones wait.
  Status Serve(std::span<const net::Listener> listeners);
  // Ends Serve(), and closures as they end.
  void Stop();
  // Takes no more closures; what it has runs on.
  void Drain();

  // What runs now.
  const RunningTable& running() const { return running_; }

 private:
  // A driver's (epoch, incarnation): the higher one wins.
  using Seniority = std::pair<std::uint32_t, std::uint16_t>;

  Executor(Options options, const FunctionTable& functions, net::Fd wake);
  // The whole life of a connection before it is a session.
  void Welcome(net::Accepted accepted, net::LinkKind kind, net::Greeters::Guest& guest);
  // Its number among those that were let in.
  Result<std::uint64_t> Admit(const net::Hello& hello);
  // Ends the session that is there and begins one, unless another connection was let in meanwhile:
  // of a senior driver, or of the same one, which then has given up the one before.
  void TakeOver(std::unique_ptr<net::DuplexLink> link, std::uint64_t number);

  const Options options_;
  const FunctionTable& functions_;
  net::SpinLimit spin_limit_;
  const net::Fd wake_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> draining_{false};
  RunningTable running_;
  // The serving thread's.
  net::Greeters greeters_;

  Mutex newest_mutex_;
  Seniority newest_ MUSTER_GUARDED_BY(newest_mutex_){0, 0};
  std::uint64_t admitted_ MUSTER_GUARDED_BY(newest_mutex_) = 0;
  // Held through a takeover, which may wait for closures.
  Mutex session_mutex_;
  std::unique_ptr<ExecutorSession> session_ MUSTER_GUARDED_BY(session_mutex_);
};

}  // namespace muster::dispatch
