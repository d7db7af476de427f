// systemd's notification protocol (sd_notify), without libsystemd.
#pragma once

#include <string>
#include <string_view>

#include "common/base/scheduler.h"

namespace muster::services {

// Sends for example "READY=1" or "STATUS=3 workers" to the socket `path` (NOTIFY_SOCKET; one that
// starts with '@' is abstract); where systemd is busy with others it waits for so long. False: no
// socket or not delivered, which is nobody's problem but for what is said once.
bool Notify(const std::string& path, std::string_view state, Millis patience = Millis(0));

}  // namespace muster::services
