#include "services/common/network.h"

#include <cerrno>
#include <memory>
#include <optional>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/host_port.h"
#include "common/base/number_in.h"
#include "common/telemetry/log.h"

namespace muster::services {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) return NotFound("host {}: {}", host, ::gai_strerror(error));
  return AddressList(list, &::freeaddrinfo);
}

bool IsLoopbackAddress(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) return v6->sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
  }
  return false;
}

bool AnyLoopback(const addrinfo& list) {
  for (const addrinfo* entry = &list; entry != nullptr; entry = entry->ai_next) {
    if (IsLoopbackAddress(entry->ai_addr)) return true;
  }
  return false;
}

bool IsName(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) != 1 &&
         ::inet_pton(AF_INET6, host.c_str(), &address) != 1;
}

bool BindAndListen(const net::Fd& fd, const sockaddr* address, socklen_t size) {
  constexpr int kBacklog = 4'096;
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return ::bind(fd.get(), address, size) == 0 && ::listen(fd.get(), kBacklog) == 0;
}

// A host is also itself by loopback: Kubernetes brings forwarded ports there. Where another process
// has that port the daemon does without, since its cluster comes by the name.
void AlsoOnLoopback(int port, std::vector<net::Fd>& listeners) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  net::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (BindAndListen(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address)) {
    listeners.push_back(std::move(fd));
  } else {
    log::Warning("not on 127.0.0.1:{}: {}", port, Message(FromErrno(errno, "listen")));
  }
}

void SetPort(sockaddr* address, int port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(static_cast<std::uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(static_cast<std::uint16_t>(port));
  }
}

int PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  (void)::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return address.ss_family == AF_INET6
             ? ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port)
             : ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

std::string Endpoint::ToString() const { return JoinHostPort(host, port); }

Result<Endpoint> ParseEndpoint(std::string_view text) {
  const std::optional<HostAndPort> parts = SplitHostPort(text);
  if (!parts) {
    if (text.find(':') != text.rfind(':')) {
      return InvalidArgument("address \"{}\": write an IPv6 host as [host]:port", text);
    }
    return InvalidArgument("address \"{}\": must be host:port", text);
  }
  const int port = NumberIn<int>(parts->port).value_or(-1);
  if (port < 0 || port > 65'535) {
    return InvalidArgument("address \"{}\": the port must be a number from 0 to 65535", text);
  }
  return Endpoint{.host = std::string(parts->host), .port = port};
}

Result<bool> IsLoopback(const std::string& host) {
  MUSTER_TRY_ASSIGN(const AddressList list, Resolve(host, 0));
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (!IsLoopbackAddress(entry->ai_addr)) return false;
  }
  return true;
}

Result<std::string> FirstAddress(const std::string& host) {
  MUSTER_TRY_ASSIGN(const AddressList list, Resolve(host, 0));
  char text[NI_MAXHOST] = {};
  const int error =
      ::getnameinfo(list->ai_addr, list->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return NotFound("host {}: {}", host, ::gai_strerror(error));
  return std::string(text);
}

// On every address of the host, with one port for all. Port 0: one that is free on each.
Result<std::vector<net::Fd>> Listen(Endpoint& endpoint) {
  constexpr int kTries = 8;
  for (int left = kTries;; --left) {
    MUSTER_TRY_ASSIGN(const AddressList list, Resolve(endpoint.host, endpoint.port));
    int port = endpoint.port;
    std::vector<net::Fd> listeners;
    Status status, off;
    for (const addrinfo* entry = list.get(); entry != nullptr && status.ok();
         entry = entry->ai_next) {
      net::Fd fd(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!fd.valid()) continue;  // a family that this kernel lacks
      SetPort(entry->ai_addr, port);
      if (!BindAndListen(fd, entry->ai_addr, entry->ai_addrlen)) {
        const int error = errno;
        const Status why = FromErrno(error, fmt::format("listen on {}", endpoint.ToString()));
        // "localhost" is ::1, too, where IPv6 is switched off: in containers, as a rule.
        (error == EADDRNOTAVAIL && IsLoopbackAddress(entry->ai_addr) ? off : status) = why;
        continue;
      }
      port = PortOf(fd.get());
      listeners.push_back(std::move(fd));
    }
    // The free port of one address may be taken on the next.
    if (!status.ok() && endpoint.port == 0 && !listeners.empty() && left > 1) continue;
    MUSTER_TRY(status);
    if (listeners.empty()) {
      MUSTER_TRY(off);
      return Unavailable("listen on {}: no address that this kernel knows", endpoint.ToString());
    }
    endpoint.port = port;
    if (IsName(endpoint.host) && !AnyLoopback(*list)) AlsoOnLoopback(port, listeners);
    return listeners;
  }
}

}  // namespace muster::services
