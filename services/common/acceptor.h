// Takes the connections of a gRPC server: binds, accepts, and hands each socket over.
//
// gRPC 1.51's own listener ends for ever at the first accept(2) that finds no free descriptor, and
// has no limit on connections. This one waits and goes on, and never has more open than it was
// told: who comes then is refused at once and may come again.
//
// Threading: any thread; sockets are handed over on a thread of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/rate_limit.h"
#include "common/base/status.h"
#include "common/net/fd.h"
#include "services/common/network.h"

namespace muster::services {

class Acceptor {
 public:
  // Takes ownership of a connected, non-blocking socket.
  using Take = std::function<void(int fd)>;

  // Binds all addresses of the host. Port 0: a free one, the same for all of them.
  //   kFailedPrecondition: somebody listens there.
  static Result<std::unique_ptr<Acceptor>> Bind(const Endpoint& endpoint,
                                                std::size_t most_connections);
  // Stops.
  ~Acceptor();

  // With the port that was chosen.
  const Endpoint& endpoint() const { return endpoint_; }
  void Start(Take take);
  // Closes the port, not the connections. Idempotent.
  void Stop();

 private:
  // A socket that was handed over: closed once the number stands for another one, or for none.
  struct Open {
    int fd = -1;
    std::uint64_t inode = 0;
  };

  Acceptor(Endpoint endpoint, std::vector<net::Fd> listeners, net::Fd wake, std::size_t most)
      : endpoint_(std::move(endpoint)),
        most_(most),
        listeners_(std::move(listeners)),
        wake_(std::move(wake)) {}
  void Run();
  // kUnavailable: there is nothing to accept. Any other: the host's trouble, which may pass.
  Status AcceptOne(int listener);
  bool Full();

  const Endpoint endpoint_;
  const std::size_t most_;
  std::vector<net::Fd> listeners_;
  net::Fd wake_;
  Take take_;
  std::atomic<bool> stopping_{false};
  std::vector<Open> open_;  // of the thread
  RateLimit full_{Millis(10'000)};
  RateLimit failing_{Millis(10'000)};
  std::thread thread_;
};

}  // namespace muster::services
