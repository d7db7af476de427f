#include "common/net/socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

#include "common/net/socket_calls.h"

namespace muster::net {
namespace {

using RealTime = std::chrono::steady_clock;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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
    : fd_(std::move(fd)), kind_(kind), peer_(std::move(peer)), spinner_(spin, limit) {}

ssize_t Socket::ReceiveOnce(std::span<std::byte> into, Fd* descriptor) {
  const std::size_t most = std::min(into.size(), kBytesPerOperation);
  if (descriptor == nullptr) return ::recv(fd_.get(), into.data(), most, MSG_DONTWAIT);
  return ReceiveWithDescriptors(fd_.get(), into.first(most),
                                [descriptor](Fd fd) { *descriptor = std::move(fd); });
}

ssize_t Socket::SpinReceive(std::span<std::byte> into, Fd* descriptor) {
  const TimePoint start = RealTime::now();
  ssize_t n = -1;
  do {
    for (int i = 0; i < 16; ++i) Pause();
    n = ReceiveOnce(into, descriptor);
  } while (n < 0 && WouldBlock(errno) && RealTime::now() - start < Spinner::kWindow);
  const int error = errno;
  spinner_.End(n >= 0);
  errno = error;
  return n;
}

Result<std::size_t> Socket::Read(std::span<std::byte> into, TimePoint deadline, Fd* descriptor) {
  ssize_t n = ReceiveOnce(into, descriptor);
  if (n < 0 && WouldBlock(errno)) {
    if (spinner_.Begin()) n = SpinReceive(into, descriptor);
    while (n < 0 && (WouldBlock(errno) || errno == EINTR)) {
      MUSTER_TRY(Wait(POLLIN, deadline));
      n = ReceiveOnce(into, descriptor);
    }
  }
  if (n < 0) return Unavailable("{}: {}", peer_, Message(FromErrno(errno, "read")));
  bytes_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
  return static_cast<std::size_t>(n);
}

Result<std::size_t> Socket::Write(std::span<const iovec> parts, TimePoint deadline,
                                  int descriptor) {
  std::array<iovec, 64> window{};
  const std::span<iovec> now = std::span(window).first(Window(parts, window));
  for (;;) {
    const ssize_t n = SendParts(fd_.get(), now, descriptor);
    if (n >= 0) {
      bytes_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
      return static_cast<std::size_t>(n);
    }
    if (!WouldBlock(errno) && errno != EINTR) {
      return Unavailable("{}: {}", peer_, Message(FromErrno(errno, "write")));
    }
    MUSTER_TRY(Wait(POLLOUT, deadline));
  }
}

Status Socket::Wait(short events, TimePoint deadline) {
  for (;;) {
    pollfd entry{.fd = fd_.get(), .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, PollTimeout(deadline));
    if (ready > 0) return Ok();
    if (ready < 0 && errno != EINTR) return FromErrno(errno, "poll");
    if (RealTime::now() >= deadline) {
      return DeadlineExceeded("{}: {}", peer_,
                              events == POLLIN ? "no bytes came" : "it took no bytes");
    }
  }
}

void Socket::EndWrites() { (void)::shutdown(fd_.get(), SHUT_WR); }

void Socket::ShutDown() { (void)::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace muster::net
