// Listening, accepting and connecting: the part of socket.h that deals in addresses.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/base/host_port.h"
#include "common/base/number_in.h"
#include "common/net/socket.h"
#include "common/net/socket_calls.h"

namespace muster::net {
namespace {

// As many as the system lets: who asks one that stands still is not to be taken for cut off.
constexpr int kBacklog = SOMAXCONN;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

struct NamedPort {
  std::string host;  // without brackets
  std::uint16_t port = 0;
};
std::optional<NamedPort> Parse(const std::string& text) {
  const std::optional<HostAndPort> parts = SplitHostPort(text);
  if (!parts) return std::nullopt;
  const auto port = NumberIn<std::uint16_t>(parts->port);
  if (!port) return std::nullopt;
  return NamedPort{.host = std::string(parts->host), .port = *port};
}

Result<Address> ParseTcp(const std::string& text) {
  const std::optional<NamedPort> named = Parse(text);
  bool good = named.has_value();
  Address address;
  if (good && text.front() == '[') {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(named->port);
    address.size = sizeof(*v6);
    good = ::inet_pton(AF_INET6, named->host.c_str(), &v6->sin6_addr) == 1;
  } else if (good) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(named->port);
    address.size = sizeof(*v4);
    good = ::inet_pton(AF_INET, named->host.c_str(), &v4->sin_addr) == 1;
  }
  if (!good) {
    return InvalidArgument(
        "\"{}\" is no data address: give a numeric one, as 127.0.0.1:0 or [::1]:0", text);
  }
  return address;
}

// All addresses that the name in "host:7000" stands for now.
Result<std::vector<Address>> Resolve(const std::string& text) {
  const std::optional<NamedPort> named = Parse(text);
  if (!named || text.front() == '[') {
    return InvalidArgument("\"{}\" is no address: give host:port", text);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(named->host.c_str(), std::to_string(named->port).c_str(), &hints, &found);
  if (error != 0) return Unavailable("{}: {}", text, ::gai_strerror(error));
  std::vector<Address> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Address& address = addresses.emplace_back();
    address.size = one->ai_addrlen;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
  }
  ::freeaddrinfo(found);
  return addresses;
}

std::string Print(const Address& address) {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    (void)::inet_ntop(AF_INET6, &v6->sin6_addr, host.data(), host.size());
    return JoinHostPort(host.data(), ntohs(v6->sin6_port));
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  (void)::inet_ntop(AF_INET, &v4->sin_addr, host.data(), host.size());
  return JoinHostPort(host.data(), ntohs(v4->sin_port));
}

Result<Address> UnixAddress(const std::string& path) {
  Address address;
  auto* local = reinterpret_cast<sockaddr_un*>(&address.storage);
  if (path.empty() || path.size() >= sizeof(local->sun_path)) {
    return InvalidArgument(
        "socket path {} has {} bytes, allowed 1 to {}: choose a shorter directory", path,
        path.size(), sizeof(local->sun_path) - 1);
  }
  local->sun_family = AF_UNIX;
  std::memcpy(local->sun_path, path.c_str(), path.size() + 1);
  address.size = sizeof(*local);
  return address;
}

// An answer must not wait for more to send, and a dead host must not hold a thread for ever.
void SetTcpOptions(int fd) {
  const int on = 1;
  const int idle_s = 15;
  const int interval_s = 5;
  const int probes = 3;
  // More than a peer may lawfully let a sender wait (a parameter server short of stage memory
  // does, for 30 s): after that, what nobody acknowledged ends the connection instead of being
  // sent for a quarter of an hour. Requests have deadlines of their own.
  const int unacknowledged_ms = 45'000;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  (void)::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms,
                     sizeof(unacknowledged_ms));
}

Status FinishConnect(int fd, const std::string& peer, TimePoint deadline) {
  const TimePoint began = std::chrono::steady_clock::now();
  const int ready = PollUntil(fd, POLLOUT, deadline);
  if (ready < 0) return FromErrno(errno, "poll");
  if (ready == 0) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    return DeadlineExceeded("{}: no answer to a connection in {:.3g} s", peer, took.count());
  }
  int error = 0;
  socklen_t size = sizeof(error);
  (void)::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return Unavailable("{}: {}", peer, Message(FromErrno(error, "connect")));
  return Ok();
}

Result<Fd> Connect(const Address& address, const std::string& peer, TimePoint deadline) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return FromErrno(errno, "socket");
  if (::connect(fd.get(), address.get(), address.size) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) {
      return Unavailable("{}: {}", peer, Message(FromErrno(errno, "connect")));
    }
    MUSTER_TRY(FinishConnect(fd.get(), peer, deadline));
  }
  return fd;
}

// Whether both ends are one socket. Who connects to a port of this host where nobody listens may be
// given that very port for its own end, and the kernel joins it to itself: it would hear itself and
// keep the port from who is to listen there.
bool IsJoinedToItself(int fd) {
  Address here, there;
  here.size = there.size = sizeof(sockaddr_storage);
  if (::getsockname(fd, here.get(), &here.size) != 0 ||
      ::getpeername(fd, there.get(), &there.size) != 0 || here.size != there.size ||
      std::memcmp(&here.storage, &there.storage, here.size) != 0) {
    return false;
  }
  // The port is free at once, not a minute later.
  const linger none{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  return true;
}

// Until when the first of so many addresses is tried: one that does not answer leaves time for the
// others.
TimePoint ShareOf(TimePoint deadline, std::size_t addresses) {
  if (addresses == 1 || deadline == TimePoint::max()) return deadline;
  const TimePoint now = std::chrono::steady_clock::now();
  return now + (deadline - now) / static_cast<TimePoint::rep>(addresses);
}

// What accept(2) says of a connection that was lost before it was taken: the listener is fine.
bool IsOfConnection(int error) {
  constexpr std::array kAll{EAGAIN, EINTR,        ECONNABORTED, EPERM,
                            EPROTO, ENETDOWN,     ENOPROTOOPT,  EHOSTDOWN,
                            ENONET, EHOSTUNREACH, EOPNOTSUPP,   ENETUNREACH};
  return std::ranges::find(kAll, error) != kAll.end();
}

Result<Fd> Listen(const Address& address, const std::string& name) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return FromErrno(errno, "socket");
  const int on = 1;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), address.get(), address.size) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return Unavailable("cannot listen on {}: {}", name, Message(FromErrno(errno, "bind")));
  }
  return fd;
}

}  // namespace

Result<Listener> ListenTcp(const std::string& text) {
  constexpr std::string_view kLocal = "localhost:";
  MUSTER_TRY_ASSIGN(
      Address address,
      ParseTcp(text.starts_with(kLocal) ? "127.0.0.1:" + text.substr(kLocal.size()) : text));
  Listener listener;
  MUSTER_TRY_ASSIGN(listener.fd, Listen(address, text));
  address.size = sizeof(address.storage);
  if (::getsockname(listener.fd.get(), address.get(), &address.size) != 0) {
    return FromErrno(errno, "getsockname");
  }
  listener.kind = LinkKind::kTcp;
  listener.address = Print(address);
  return listener;
}

Result<Listener> ListenUnix(const std::string& path) {
  MUSTER_TRY_ASSIGN(const Address address, UnixAddress(path));
  Listener listener;
  MUSTER_TRY_ASSIGN(listener.fd, Listen(address, path));
  if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0) return FromErrno(errno, "chmod " + path);
  listener.kind = LinkKind::kUnix;
  listener.address = path;
  return listener;
}

Result<Fd> ConnectTcp(const std::string& text, TimePoint deadline) {
  std::vector<Address> addresses;
  if (const Result<Address> numeric = ParseTcp(text); numeric.ok()) {
    addresses.push_back(*numeric);
  } else {
    MUSTER_TRY_ASSIGN(addresses, Resolve(text));
  }
  Status last = Unavailable("{}: the name stands for no address", text);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    Result<Fd> fd = Connect(addresses[i], text, ShareOf(deadline, addresses.size() - i));
    if (fd.ok() && IsJoinedToItself(fd->get())) {
      fd = Unavailable("{}: {}", text, Message(FromErrno(ECONNREFUSED, "connect")));
    }
    if (fd.ok()) {
      SetTcpOptions(fd->get());
      return fd;
    }
    last = fd.status();
  }
  return last;
}

Result<Fd> ConnectUnix(const std::string& path, TimePoint deadline) {
  MUSTER_TRY_ASSIGN(const Address address, UnixAddress(path));
  return Connect(address, path, deadline);
}

bool IsRefused(const Status& status) {
  return Message(status).find(Message(FromErrno(ECONNREFUSED, "connect"))) != std::string::npos;
}

Result<Accepted> Accept(std::span<const Listener> listeners, int wake, Millis timeout) {
  std::vector<pollfd> entries;
  for (const Listener& listener : listeners) entries.push_back({listener.fd.get(), POLLIN, 0});
  entries.push_back({wake, POLLIN, 0});
  if (::poll(entries.data(), entries.size(), static_cast<int>(timeout.count())) < 0 &&
      errno != EINTR) {
    return FromErrno(errno, "poll");
  }
  // Not to be waited for: poll() comes back at once, again and again.
  for (const pollfd& entry : entries) {
    if ((entry.revents & POLLNVAL) == 0) continue;
    return FailedPrecondition(
        "descriptor {}, which it listens on or is woken by, is closed: other code of this process "
        "has closed what it has not opened",
        entry.fd);
  }
  for (std::size_t i = 0; i < listeners.size(); ++i) {
    if ((entries[i].revents & POLLIN) == 0) continue;
    Address address;
    address.size = sizeof(address.storage);
    Fd fd(::accept4(listeners[i].fd.get(), address.get(), &address.size,
                    SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (IsOfConnection(errno)) return Accepted{};
      return FromErrno(errno, "accept");
    }
    if (listeners[i].kind == LinkKind::kUnix) return Accepted{std::move(fd), i, "unix peer"};
    SetTcpOptions(fd.get());
    return Accepted{std::move(fd), i, Print(address)};
  }
  return Accepted{};
}

}  // namespace muster::net
