// Blocking use of stream sockets with deadlines: spin, then poll. On one host bytes may pass
// through rings in shared memory instead (rings.h); the socket then wakes who sleeps, and shows a
// peer's end.
//
// Threading and errors: those of Link; also kDataLoss, the peer's side of the rings is impossible.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sys/uio.h>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/fd.h"
#include "common/net/link.h"
#include "common/net/rings.h"
#include "common/net/spin.h"
#include "common/net/stream.h"

namespace muster::net {

// No more than this passes in one call of the kernel: more gains nothing, 64 KiB costs a factor 3.
inline constexpr std::size_t kBytesPerOperation = 1U << 20;

class Socket final : public Link {
 public:
  // `fd` does not block; `limit` outlives the socket.
  Socket(Fd fd, LinkKind kind, std::string peer, SpinMode spin, SpinLimit* limit);
  // What it reads and writes through may go on without it.
  Socket(std::shared_ptr<Stream> stream, LinkKind kind, std::string peer, SpinMode spin,
         SpinLimit* limit);

  // From now on all bytes pass through them, in both directions, and no descriptors. Both sides say
  // so between two messages: nothing is on its way.
  void UseRings(Rings rings) { rings_.emplace(std::move(rings)); }
  bool uses_rings() const { return rings_.has_value(); }
  int fd() const { return stream_->fd(); }

  LinkKind kind() const override { return kind_; }
  const std::string& peer() const override { return peer_; }
  Result<std::size_t> Read(std::span<std::byte> into, TimePoint deadline, Fd* descriptor) override;
  Result<std::size_t> Write(std::span<const iovec> parts, TimePoint deadline,
                            int descriptor) override;
  void EndWrites() override;
  void ShutDown() override;
  Stream* stream() override { return stream_.get(); }
  std::uint64_t bytes() const override { return bytes_.load(std::memory_order_relaxed); }

 private:
  // `missed`: what did not happen, for the error.
  Status Wait(short events, TimePoint deadline, std::string_view missed);
  ssize_t ReceiveOnce(std::span<std::byte> into, Fd* descriptor);
  ssize_t SpinReceive(std::span<std::byte> into, Fd* descriptor);

  Result<std::size_t> ReadRing(std::span<std::byte> into, TimePoint deadline);
  Result<std::size_t> WriteRing(std::span<const iovec> parts, TimePoint deadline);
  // Spins, where that pays off, until the ring is ready. False: it is not.
  bool SpinForRing(Rings::Sleep wanted);
  // Sleeps until the peer wakes this side, or ends.
  Status SleepForRing(Rings::Sleep wanted, TimePoint deadline);
  // Reads what wakes have left in the socket; sees whether the peer has ended.
  void ReadWakes();
  void WakePeer(Rings::Sleep done);

  std::shared_ptr<Stream> stream_;
  LinkKind kind_;
  std::string peer_;
  Spinner spinner_;
  std::atomic<std::uint64_t> bytes_{0};
  std::optional<Rings> rings_;
  // The peer's side of the socket is closed: 0, or the error's number.
  std::optional<int> ended_;
  // ShutDown() was called; rings would go on.
  std::atomic<bool> down_{false};
};

struct Listener {
  Fd fd;
  LinkKind kind = LinkKind::kTcp;
  // The bound host:port, or the path.
  std::string address;
};

// "127.0.0.1:0", "[::1]:7000".
//   kInvalidArgument: no numeric address and port.  kUnavailable: it is in use.
Result<Listener> ListenTcp(const std::string& address);
// kInvalidArgument: the path is too long for a socket (107 bytes).
Result<Listener> ListenUnix(const std::string& path);
// The host may be a name, which is looked up each time: a pod comes back with another address.
// Where it stands for several they are tried in turn, and share the time.
//   kUnavailable: nobody listens, or nobody knows the name.  kDeadlineExceeded: no answer.
//   kInvalidArgument: no host and port.
Result<Fd> ConnectTcp(const std::string& address, TimePoint deadline);
Result<Fd> ConnectUnix(const std::string& path, TimePoint deadline);
// Whether that is what they say where nobody listens, for certain: not of one that is cut off, or
// has too many at its door.
bool IsRefused(const Status& status);
// Waits at most `timeout` for the next connection of any listener; index of the listener and the
// socket, with its options set; an invalid Fd when none came. `wake` becoming readable ends the
// wait.
//   kResourceExhausted: there are too many open files; a connection waits. What else comes of a
//   listener is for good.
struct Accepted {
  Fd fd;
  std::size_t listener = 0;
  std::string peer;
};
Result<Accepted> Accept(std::span<const Listener> listeners, int wake, Millis timeout);

}  // namespace muster::net
