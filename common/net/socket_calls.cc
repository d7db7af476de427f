#include "common/net/socket_calls.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

namespace muster::net {

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

int PollTimeout(TimePoint deadline) {
  if (deadline == TimePoint::max()) return -1;
  const auto left = std::chrono::ceil<Millis>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
}

int PollUntil(int fd, short events, TimePoint deadline) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, PollTimeout(deadline));
    if (ready > 0 || (ready < 0 && errno != EINTR)) return ready;
    if (std::chrono::steady_clock::now() >= deadline) return 0;
  }
}

ssize_t SendParts(int fd, std::span<iovec> parts, int descriptor) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  }
  return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Alignment leaves room for two where one was asked for.
ssize_t ReceiveWithDescriptors(int fd, std::span<std::byte> into,
                               absl::FunctionRef<void(Fd)> take) {
  iovec part{.iov_base = into.data(), .iov_len = into.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return n;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(received));
      take(Fd(received));
    }
  }
  return n;
}

}  // namespace muster::net
