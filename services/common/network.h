// Addresses that a daemon may use: without certificates or --allow-insecure-network those of
// loopback alone (daemon_config.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/net/fd.h"

namespace muster::services {

struct Endpoint {
  std::string host;
  int port = 0;
  // "host:port", "[v6]:port".
  std::string ToString() const;
};

// "host:port" or "[v6]:port", port 0 allowed. kInvalidArgument: anything else.
Result<Endpoint> ParseEndpoint(std::string_view text);

// Whether all addresses that `host` resolves to are loopback ones.
//   kNotFound: it does not resolve.
Result<bool> IsLoopback(const std::string& host);

// The first address of `host` as text ("127.0.0.1"). kNotFound: it does not resolve.
Result<std::string> FirstAddress(const std::string& host);

// Listens on all addresses of the host, and where that is a name on 127.0.0.1, too, if nobody else
// does; `endpoint` gets the port that was chosen for port 0. A loopback address that is switched
// off here (::1 without IPv6) is left out when there is another one.
//   kFailedPrecondition: somebody listens there.  kNotFound: the host does not resolve.
Result<std::vector<net::Fd>> Listen(Endpoint& endpoint);

}  // namespace muster::services
