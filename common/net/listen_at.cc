#include "common/net/listen_at.h"

#include <array>
#include <optional>
#include <vector>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/base/host_port.h"

namespace muster::net {
namespace {

// The numeric forms of what `host` stands for now; none where nobody knows it.
std::vector<std::string> NumericForms(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<std::string> forms;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return forms;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) != 0) {
      continue;
    }
    forms.push_back(JoinHostPort(text.data(), port));
  }
  ::freeaddrinfo(found);
  return forms;
}

// Debian's installer gives a host's own name 127.0.1.1 where it has no fixed address: others know
// it by another one.
bool IsStandIn(const std::string& numeric) { return numeric.starts_with("127.0.1.1:"); }

// Whether a socket of this host may have that address.
bool IsLocal(const std::string& numeric) {
  const std::string host = numeric.substr(0, numeric.rfind(':'));
  return ListenTcp(host + ":0").ok();
}

}  // namespace

Result<Listener> ListenAt(const std::string& address) {
  const std::optional<HostAndPort> parts = SplitHostPort(address);
  if (!parts || parts->port.empty()) {
    return InvalidArgument("\"{}\" is no address: give host:port", address);
  }
  const std::string host(parts->host), port(parts->port);
  for (const std::string& numeric : NumericForms(host, port)) {
    const bool named = numeric != address;
    if (named && IsStandIn(numeric)) continue;
    if (IsLocal(numeric)) return ListenTcp(numeric);
  }
  return ListenTcp("0.0.0.0:" + port);
}

}  // namespace muster::net
