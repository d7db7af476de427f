#include "common/process/ports.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace muster::process {
namespace {

constexpr std::uint32_t kLeast = 10'000;
constexpr std::uint32_t kMost = 65'535;
// Fewer are no range to live in.
constexpr std::uint32_t kEnough = 2'000;

struct Range {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

// Below the kernel's own range, or above it; where it leaves no room, inside.
Range PortRange() {
  std::uint32_t low = 32'768, high = 60'999;
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  file >> low >> high;
  const auto range = [](std::uint32_t first, std::uint32_t last) {
    return Range{static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last)};
  };
  if (low >= kLeast + kEnough && low <= kMost) return range(kLeast, low - 1);
  if (high + kEnough <= kMost) return range(high + 1, kMost);
  return range(kLeast, kMost);
}

// Names are of a network namespace, as ports are. -1: errno says why; EADDRINUSE: another has it.
int ClaimName(std::uint16_t port) {
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = fmt::format("muster-port-{}", port);
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&name), length) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

// Another port would be no better.
bool NoDescriptors(int error) { return error == EMFILE || error == ENFILE; }

// Without SO_REUSEADDR: not even an old connection is left of it. -1: errno says why.
int Hold(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

}  // namespace

PortClaim& PortClaim::operator=(PortClaim&& other) noexcept {
  std::swap(port_, other.port_);
  std::swap(claim_, other.claim_);
  std::swap(held_, other.held_);
  return *this;
}

PortClaim::~PortClaim() {
  Open();
  if (claim_ >= 0) ::close(claim_);
}

void PortClaim::Open() {
  if (held_ >= 0) ::close(std::exchange(held_, -1));
}

PortAllotter::PortAllotter()
    : first_(PortRange().first),
      last_(PortRange().last),
      next_(std::random_device()() % (last_ - first_ + 1U)) {}

// Goes on behind the last port that was given, so that one that has just been let go rests.
Result<std::vector<PortClaim>> PortAllotter::Claim(const std::string& host, std::size_t count) {
  std::vector<PortClaim> claims;
  const std::uint32_t size = last_ - first_ + 1U;
  const MutexLock lock(mutex_);
  for (std::uint32_t tried = 0; tried < size && claims.size() < count; ++tried) {
    const auto port = static_cast<std::uint16_t>(first_ + next_);
    next_ = (next_ + 1) % size;
    PortClaim claim;
    claim.claim_ = ClaimName(port);
    if (claim.claim_ < 0) {
      if (NoDescriptors(errno)) return FromErrno(errno, fmt::format("ports on {}", host));
      continue;
    }
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
      return InvalidArgument("ports on {}: no numeric address", host);
    }
    claim.held_ = Hold(*found);
    const int error = errno;
    ::freeaddrinfo(found);
    if (claim.held_ >= 0) {
      claim.port_ = port;
      claims.push_back(std::move(claim));
    } else if (error == EADDRNOTAVAIL) {
      return InvalidArgument("ports on {}: this machine has no such address", host);
    } else if (NoDescriptors(error)) {
      return FromErrno(error, fmt::format("ports on {}", host));
    }
  }
  if (claims.size() == count) return claims;
  return ResourceExhausted("ports on {}: {} of {} wanted are free between {} and {}", host,
                           claims.size(), count, first_, last_);
}

}  // namespace muster::process
