// "host:port" taken apart and put together. An IPv6 host stands in brackets there, and nowhere
// else. Threading: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace muster {

struct HostAndPort {
  std::string_view host;  // without brackets
  std::string_view port;  // whatever it is, nothing too
};

// Taken apart at the last colon; refers to `text`. Nothing: there is no colon, no host before it,
// or one with colons and no brackets. Whether the host is one and the port a number is not asked.
std::optional<HostAndPort> SplitHostPort(std::string_view text);

// The host of host:port, or of a host that stands alone, without brackets either way.
std::string HostIn(std::string_view text);

// "10.0.0.7", "[fd00::7]". A host in brackets stays as it is: people give it so.
std::string Bracketed(std::string_view host);
std::string JoinHostPort(std::string_view host, std::string_view port);
std::string JoinHostPort(std::string_view host, int port);

}  // namespace muster
