// The coordinator's state directory, and who has it. Internal to coordinator/.
#pragma once

#include <string>

#include "common/base/status.h"

namespace muster::coordinator {

inline constexpr const char* kDatabaseName = "coordinator.db";
inline constexpr const char* kFilesName = "files";

// Makes the directory (0700) and holds it: a descriptor, which lets go of it when it is closed. The
// lock file has the pid of its owner, for the message that the other one gets.
//   kFailedPrecondition: another coordinator holds it (named by its pid).
Result<int> HoldStateDirectory(const std::string& directory);

}  // namespace muster::coordinator
