// Bytes to one peer and back: what a Channel stands on. Socket (socket.h) is the real one; the
// tests' MemoryLink has no kernel below it and takes its time from a fake clock.
//
// Threading: one thread, but ShutDown() and bytes() from any.
// Errors: kUnavailable, the peer is gone (named); kDeadlineExceeded, not one byte moved before the
// deadline (the peer is named; how far the whole transfer came is the caller's to say).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <sys/uio.h>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/fd.h"

namespace muster::net {

class Stream;

enum class LinkKind { kTcp, kUnix };

class Link {
 public:
  virtual ~Link() = default;

  virtual LinkKind kind() const = 0;
  // How messages name the other side.
  virtual const std::string& peer() const = 0;

  // Reads at least one byte. 0: the peer has closed its side. Where `descriptor` is given, one that
  // came along is stored there.
  virtual Result<std::size_t> Read(std::span<std::byte> into, TimePoint deadline,
                                   Fd* descriptor) = 0;
  // Takes at least one byte of `parts`, the first of which is not empty; returns how many.
  // `descriptor` rides on the first byte; -1: none does.
  virtual Result<std::size_t> Write(std::span<const iovec> parts, TimePoint deadline,
                                    int descriptor) = 0;
  // Says that nothing more will be written.
  virtual void EndWrites() = 0;
  // Ends a wait in Read() or Write(), now and later.
  virtual void ShutDown() = 0;

  // What TLS can be put on; null: there is no such thing.
  virtual Stream* stream() { return nullptr; }

  // All bytes that the kernel has carried so far, both directions.
  virtual std::uint64_t bytes() const = 0;
};

// The parts without their first n bytes and without empty ones before the next byte.
std::span<iovec> Advance(std::span<iovec> parts, std::size_t n);

// Writes all of `parts` (and changes them); `descriptor` rides on the first byte.
//   kDeadlineExceeded: says how many bytes of how many the peer took, and in what time.
Status WriteAll(Link& link, const Clock& clock, std::span<iovec> parts, TimePoint deadline,
                int descriptor = -1);

// Ends the writes and discards what the peer still sends (64 MiB at most) until it closes, so that
// the last words arrive: closing with unread bytes would destroy them on their way.
Status Finish(Link& link, const Clock& clock, TimePoint deadline);

}  // namespace muster::net
