#include "common/cluster/url.h"

#include <algorithm>

#include <fmt/core.h>

#include "common/base/host_port.h"
#include "common/cluster/cluster_spec.h"

namespace muster::cluster {

std::string Url::HostHeader() const {
  return port == (tls ? 443 : 80) ? Bracketed(host) : JoinHostPort(host, port);
}

bool Url::IsLoopback() const {
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
}

Result<Url> ParseUrl(std::string_view text) {
  const auto refused = [&](std::string_view why) {
    return InvalidArgument("\"{}\" is not a URL such as https://host:443/path: {}", text, why);
  };
  const bool clean =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
  if (!clean) return refused("a blank, a control character or a letter beyond ASCII");
  Url url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    url.tls = true;
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else {
    return refused("http:// or https:// is wanted");
  }
  const std::size_t slash = std::min(rest.find_first_of("/?#"), rest.size());
  const std::string_view authority = rest.substr(0, slash);
  url.target = std::string(rest.substr(slash, rest.find('#') - slash));
  if (!url.target.starts_with('/')) url.target = fmt::format("/{}", url.target);
  if (authority.find('@') != std::string_view::npos) return refused("a user name");
  if (authority.empty()) return refused("no host");
  const bool has_port = authority.back() != ']' && authority.rfind(':') != std::string_view::npos;
  const std::string address =
      has_port ? std::string(authority) : fmt::format("{}:{}", authority, url.tls ? 443 : 80);
  const Result<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return refused(Message(parsed.status()));
  url.host = parsed->host;
  url.port = parsed->port;
  return url;
}

}  // namespace muster::cluster
