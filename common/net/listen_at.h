// Listening where a list of addresses says that others look for this process.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/net/socket.h"

namespace muster::net {

// At "10.0.0.3:2222", or at the address that the name in "node-3:2222" stands for. Where that is
// not known yet, is none of this host's (a service in front of it), or stands in for it in its own
// /etc/hosts (127.0.1.1), on all interfaces: TCP's port alone is what others reach then.
//   kInvalidArgument: no host and port.  kUnavailable: the port is in use.
Result<Listener> ListenAt(const std::string& address);

}  // namespace muster::net
