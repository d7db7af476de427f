// How this host calls itself, for messages and marks that other hosts read.
#pragma once

#include <string>

namespace muster {

// Asked once for each process; "localhost" where the host has no name. Threading: any thread.
[[nodiscard]] const std::string& HostName();

}  // namespace muster
