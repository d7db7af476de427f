// Runs the closures of one driver: an endpoint that drivers connect to, and threads that read, run
// and answer.
//
// K closures run at a time. The thread that reads the link runs what it has read and answers
// itself: a closure alone costs no hand-over. While all run, a further thread keeps the link
// (pings, cancelling).
//
// A driver proves the job's key and brings its epoch and incarnation. One with higher ones takes
// the executor over, what ran for the old one is cancelled; one with lower ones is refused
// (kAborted).
//
// Threading: Serve() on one thread, Stop() from any. Lifetime: functions outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "dispatch/functions.h"

#include "common/base/status.h"
#include "common/net/duplex_link.h"
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
    net::SpinMode spin = net::SpinMode::kAdaptive;
    // How long a driver may take to prove itself.
    Millis handshake{5'000};
    net::DuplexLink::Options link = {};
  };

  //   kUnavailable: no descriptors are left.
  static Result<std::unique_ptr<Executor>> Create(Options options, const FunctionTable& functions);
  ~Executor();

  // Accepts drivers until Stop(). A driver that breaks the protocol loses its connection, no more.
  Status Serve(std::span<const net::Listener> listeners);
  // Ends Serve(), and closures as they end.
  void Stop();

 private:
  Executor(Options options, const FunctionTable& functions, net::Fd wake);
  void Welcome(net::Accepted accepted, net::LinkKind kind);

  const Options options_;
  const FunctionTable& functions_;
  net::SpinLimit spin_limit_;
  const net::Fd wake_;
  std::atomic<bool> stopped_{false};
  // The newest driver's: (epoch, incarnation).
  std::pair<std::uint32_t, std::uint16_t> newest_{0, 0};
  std::unique_ptr<ExecutorSession> session_;
};

}  // namespace muster::dispatch
