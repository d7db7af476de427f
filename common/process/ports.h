// TCP ports for processes that are yet to start.
//
// A port is outside the range that the kernel hands out by itself, so that no connection of a
// stranger takes it between the moment it is chosen and the moment its process listens; nobody
// listens on it; and no other PortClaim of this machine (of this network namespace, in any process)
// has it, until its claim is gone. Ports are taken one after the other from a random one on: a port
// comes again only when all others had their turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace muster::process {

// Lasts as long as the object. Threading: a movable value.
class PortClaim {
 public:
  PortClaim() = default;
  PortClaim(PortClaim&& other) noexcept { *this = std::move(other); }
  PortClaim& operator=(PortClaim&& other) noexcept;
  ~PortClaim();

  std::uint16_t port() const { return port_; }
  // Until now nobody can listen on it; from now on whoever was told of it can.
  void Open();

 private:
  friend class PortAllotter;
  std::uint16_t port_ = 0;
  int claim_ = -1;
  int held_ = -1;
};

// Threading: any thread.
class PortAllotter {
 public:
  PortAllotter();

  // Ports on which a socket may be bound at the numeric address `host`.
  //   kInvalidArgument: no such address on this machine.  kResourceExhausted: none is free, or no
  //   descriptor is left: each claim has two.
  Result<std::vector<PortClaim>> Claim(const std::string& host, std::size_t count);

 private:
  Mutex mutex_;
  const std::uint16_t first_;
  const std::uint16_t last_;
  std::uint32_t next_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::process
