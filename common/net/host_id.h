// Which processes can share memory and Unix sockets with this one. Threading: any thread.
#pragma once

#include <string>

#include "common/base/status.h"

namespace muster::net {

// "<boot id of the kernel>/<network namespace>/<ipc namespace>". Equal for processes of one host
// and one container; differs between containers of one host, whose Unix sockets and addresses
// differ.
//   kUnavailable: /proc is not mounted.
Result<std::string> HostId();

}  // namespace muster::net
