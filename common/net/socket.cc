#include "common/net/socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

namespace muster::net {
namespace {

using RealTime = std::chrono::steady_clock;

int PollTimeout(TimePoint deadline) {
  if (deadline == TimePoint::max()) return -1;
  const auto left = std::chrono::ceil<Millis>(deadline - RealTime::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

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

// Alignment leaves room for two where one was asked for: the kernel installs both, and one that is
// not taken here would stay open.
void TakeDescriptors(msghdr& message, Fd& into) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(received));
      into.Reset(received);  // the last one stays
    }
  }
}

}  // namespace

Socket::Socket(Fd fd, LinkKind kind, std::string peer, SpinMode spin, SpinLimit* limit)
    : fd_(std::move(fd)), kind_(kind), peer_(std::move(peer)), spinner_(spin, limit) {}

ssize_t Socket::ReceiveOnce(std::span<std::byte> into, Fd* descriptor) {
  const std::size_t most = std::min(into.size(), kBytesPerOperation);
  if (descriptor == nullptr) return ::recv(fd_.get(), into.data(), most, MSG_DONTWAIT);
  iovec part{.iov_base = into.data(), .iov_len = most};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return n;
  TakeDescriptors(message, *descriptor);
  return n;
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
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = window.data();
  message.msg_iovlen = Window(parts, window);
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  }
  for (;;) {
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
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
