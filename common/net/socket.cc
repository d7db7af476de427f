#include "common/net/socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

#include "common/base/cpu_pause.h"
#include "common/net/socket_calls.h"

namespace muster::net {
namespace {

using RealTime = std::chrono::steady_clock;

constexpr std::string_view kNothingCame = "no bytes came";
constexpr std::string_view kNothingTaken = "it took no bytes";

// At most kBytesPerOperation of the remaining parts, in `window`; its length in parts.
std::size_t Window(std::span<const iovec> parts, std::span<iovec> window) {
  std::size_t count = 0;
  std::size_t room = kBytesPerOperation;
  while (count < parts.size() && count < window.size() && room > 0) {
    window[count] = parts[count];
    window[count].iov_len = std::min(room, parts[count].iov_len);
    room -= window[count].iov_len;
    ++count;
  }
  return count;
}

}  // namespace

Socket::Socket(Fd fd, LinkKind kind, std::string peer, SpinMode spin, SpinLimit* limit)
    : Socket(std::make_shared<Stream>(std::move(fd)), kind, std::move(peer), spin, limit) {}

Socket::Socket(std::shared_ptr<Stream> stream, LinkKind kind, std::string peer, SpinMode spin,
               SpinLimit* limit)
    : stream_(std::move(stream)), kind_(kind), peer_(std::move(peer)), spinner_(spin, limit) {}

ssize_t Socket::ReceiveOnce(std::span<std::byte> into, Fd* descriptor) {
  const std::size_t most = std::min(into.size(), kBytesPerOperation);
  if (descriptor == nullptr) return stream_->Receive(into.first(most));
  return stream_->ReceiveWith(into.first(most),
                              [descriptor](Fd fd) { *descriptor = std::move(fd); });
}

ssize_t Socket::SpinReceive(std::span<std::byte> into, Fd* descriptor) {
  const TimePoint start = RealTime::now();
  ssize_t n = -1;
  do {
    for (int i = 0; i < 16; ++i) CpuPause();
    n = ReceiveOnce(into, descriptor);
  } while (n < 0 && WouldBlock(errno) && RealTime::now() - start < Spinner::kWindow);
  const int error = errno;
  spinner_.End(n >= 0);
  errno = error;
  return n;
}

Result<std::size_t> Socket::Read(std::span<std::byte> into, TimePoint deadline, Fd* descriptor) {
  if (rings_) return ReadRing(into, deadline);
  ssize_t n = ReceiveOnce(into, descriptor);
  if (n < 0 && WouldBlock(errno)) {
    if (spinner_.Begin()) n = SpinReceive(into, descriptor);
    while (n < 0 && (WouldBlock(errno) || errno == EINTR)) {
      MUSTER_TRY(Wait(POLLIN, deadline, kNothingCame));
      n = ReceiveOnce(into, descriptor);
    }
  }
  if (n < 0) return stream_->Broken(errno, "read", peer_);
  bytes_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
  return static_cast<std::size_t>(n);
}

Result<std::size_t> Socket::Write(std::span<const iovec> parts, TimePoint deadline,
                                  int descriptor) {
  if (rings_) return WriteRing(parts, deadline);
  std::array<iovec, 64> window{};
  const std::span<iovec> now = std::span(window).first(Window(parts, window));
  for (;;) {
    const ssize_t n = stream_->SendWith(now, descriptor);
    if (n >= 0) {
      bytes_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
      return static_cast<std::size_t>(n);
    }
    if (!WouldBlock(errno) && errno != EINTR) {
      return stream_->Broken(errno, "write", peer_);
    }
    MUSTER_TRY(Wait(POLLOUT, deadline, kNothingTaken));
  }
}

bool Socket::SpinForRing(Rings::Sleep wanted) {
  if (!spinner_.Begin()) return false;
  const TimePoint start = RealTime::now();
  bool ready = false;
  do {
    for (int i = 0; i < 32 && !ready; ++i) {
      CpuPause();
      ready = rings_->Ready(wanted);
    }
  } while (!ready && RealTime::now() - start < Spinner::kWindow);
  spinner_.End(ready);
  return ready;
}

void Socket::ReadWakes() {
  std::array<std::byte, 256> wakes;
  const ssize_t n = ::recv(fd(), wakes.data(), wakes.size(), MSG_DONTWAIT);
  if (n > 0) bytes_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
  if (n == 0) ended_ = 0;
  if (n < 0 && !WouldBlock(errno) && errno != EINTR) ended_ = errno;
}

Status Socket::SleepForRing(Rings::Sleep wanted, TimePoint deadline) {
  if (!rings_->MaySleep(wanted)) {
    rings_->EndSleep();
    return Ok();
  }
  const std::string_view missed = wanted == Rings::Sleep::kForBytes ? kNothingCame : kNothingTaken;
  const Status woken = Wait(POLLIN, deadline, missed);
  rings_->EndSleep();
  MUSTER_TRY(woken);
  ReadWakes();
  // A peer that wakes for nothing, again and again, does not move the deadline.
  if (ended_ || rings_->Ready(wanted) || RealTime::now() < deadline) return Ok();
  return DeadlineExceeded("{}: {}", peer_, missed);
}

// A wake that finds no room in the socket stands behind others that nobody has read yet.
void Socket::WakePeer(Rings::Sleep done) {
  if (!rings_->PeerSleeps(done)) return;
  constexpr std::byte kWake{1};
  if (::send(fd(), &kWake, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {
    bytes_.fetch_add(1, std::memory_order_relaxed);
  }
}

// What the peer wrote before its end is read first.
Result<std::size_t> Socket::ReadRing(std::span<std::byte> into, TimePoint deadline) {
  for (;;) {
    if (down_.load(std::memory_order_relaxed)) return std::size_t{0};
    const bool ended = ended_.has_value();
    const auto n = rings_->Read(into);
    if (!n.ok()) return Annotate(n.status(), peer_);
    if (*n > 0) {
      WakePeer(Rings::Sleep::kForRoom);
      return *n;
    }
    if (ended && *ended_ != 0) {
      return Unavailable("{}: {}", peer_, Message(FromErrno(*ended_, "read")));
    }
    if (ended) return std::size_t{0};
    if (SpinForRing(Rings::Sleep::kForBytes)) continue;
    MUSTER_TRY(SleepForRing(Rings::Sleep::kForBytes, deadline));
  }
}

Result<std::size_t> Socket::WriteRing(std::span<const iovec> parts, TimePoint deadline) {
  for (;;) {
    if (down_.load(std::memory_order_relaxed) || ended_) {
      return Unavailable("{}: {}", peer_, Message(FromErrno(EPIPE, "write")));
    }
    const auto n = rings_->Write(parts);
    if (!n.ok()) return Annotate(n.status(), peer_);
    if (*n > 0) {
      WakePeer(Rings::Sleep::kForBytes);
      return *n;
    }
    if (SpinForRing(Rings::Sleep::kForRoom)) continue;
    MUSTER_TRY(SleepForRing(Rings::Sleep::kForRoom, deadline));
  }
}

Status Socket::Wait(short events, TimePoint deadline, std::string_view missed) {
  const int ready = PollUntil(fd(), events, deadline);
  if (ready < 0) return FromErrno(errno, "poll");
  return ready > 0 ? Ok() : DeadlineExceeded("{}: {}", peer_, missed);
}

void Socket::EndWrites() { stream_->EndWrites(); }

void Socket::ShutDown() {
  down_.store(true, std::memory_order_relaxed);
  stream_->ShutDown();
}

}  // namespace muster::net
