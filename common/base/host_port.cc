#include "common/base/host_port.h"

#include <fmt/format.h>

namespace muster {
namespace {

bool IsBracketed(std::string_view host) { return host.starts_with('[') && host.ends_with(']'); }

}  // namespace

std::optional<HostAndPort> SplitHostPort(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (IsBracketed(host)) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return std::nullopt;
  }
  if (host.empty()) return std::nullopt;
  return HostAndPort{.host = host, .port = text.substr(colon + 1)};
}

std::string HostIn(std::string_view text) {
  if (const auto parts = SplitHostPort(text)) return std::string(parts->host);
  return std::string(IsBracketed(text) ? text.substr(1, text.size() - 2) : text);
}

std::string Bracketed(std::string_view host) {
  const bool bare = host.find(':') != std::string_view::npos && !IsBracketed(host);
  return bare ? fmt::format("[{}]", host) : std::string(host);
}

std::string JoinHostPort(std::string_view host, std::string_view port) {
  return fmt::format("{}:{}", Bracketed(host), port);
}

std::string JoinHostPort(std::string_view host, int port) {
  return JoinHostPort(host, fmt::format_int(port).str());
}

}  // namespace muster
