// Folders for Unix sockets, whose paths have room for some 100 characters: a deep state directory
// will not do. Threading: any.
#pragma once

#include <string>

#include "common/base/status.h"

namespace muster::services {

// One of this process's own in systemd's RUNTIME_DIRECTORY, else in the temporary folder, of a name
// that nobody can have made before us. Those of processes that have ended without removing theirs
// go.
//   kInvalidArgument: TMPDIR is no folder.
Result<std::string> MakeSocketFolder();

// Removes the sockets in it, what executors note there of what they run
// ("<pid>.running"), and it, unless there is anything else. Empty: nothing.
void RemoveSocketFolder(const std::string& path);

}  // namespace muster::services
