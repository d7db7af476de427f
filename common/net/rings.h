// Two rings of bytes in shared memory, one each way, between two processes of one host: as long as
// both look, bytes pass without a call of the kernel.
//
// A peer is trusted no more than behind a socket: what it may change at any time is copied out
// before anything looks at it, and its counters are checked.
//
// Nothing here waits. Who wants to sleep says so (MaySleep), and the other side, having moved
// bytes, hears that there is somebody to wake (PeerSleeps); waking is the caller's business.
//
// Threading: one thread. Errors: kDataLoss, the peer's counters are impossible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include <sys/uio.h>

#include "common/base/status.h"
#include "common/net/arena.h"
#include "common/net/fd.h"

namespace muster::net {

class Rings {
 public:
  // Each way. A power of two.
  static constexpr std::size_t kBytes = std::size_t{32} << 10;

  // What a side sleeps for.
  enum class Sleep : std::uint32_t { kNot = 0, kForBytes = 1, kForRoom = 2 };

  // The maker's side.
  //   kResourceExhausted: no memory for it.
  static Result<Rings> Create();
  // The other side, by the maker's descriptor. Errors of PeerArena::Map.
  static Result<Rings> Map(Fd fd);
  // The maker's; to be handed over.
  int fd() const;

  // As many bytes as there are and `into` takes; 0: there are none.
  Result<std::size_t> Read(std::span<std::byte> into);
  // As many bytes of `parts` as there is room for; 0: there is none.
  Result<std::size_t> Write(std::span<const iovec> parts);
  // Whether Read(), or Write(), has something to do (or to say).
  bool Ready(Sleep wanted) const;

  // Says that this side is about to sleep. False: it must not, it is ready.
  bool MaySleep(Sleep wanted);
  void EndSleep();
  // Whether the peer sleeps for what this side has just done; says so once for each sleep.
  bool PeerSleeps(Sleep wanted);

 private:
  struct Direction;
  struct Shared;

  Rings(std::variant<Arena, PeerArena> memory, std::byte* base, bool maker);
  // Bytes that wait in the one, or stand unread in the other.
  std::uint64_t Waiting() const;
  std::uint64_t Unread() const;
  // Where this side writes next is brought near, for it was the peer that read there last.
  void PrepareWrite() const;

  std::variant<Arena, PeerArena> memory_;
  Shared* shared_;
  Direction* in_;
  Direction* out_;
  std::size_t self_;
  // This side's own counters: those in shared memory are for the peer alone.
  std::uint64_t read_ = 0;
  std::uint64_t written_ = 0;
  // What the peer has read of it, as far as was looked.
  std::uint64_t seen_read_ = 0;
};

}  // namespace muster::net
