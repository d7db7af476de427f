// Folders that other users of this host must not reach into: in /tmp anybody may have made one
// before us, or a link in its place.
#pragma once

#include <string>

#include "common/base/status.h"

namespace muster {

// Makes it, mode 0700, or accepts one that is there and is ours alone.
//   kPermissionDenied: another user's, or others may enter.  kFailedPrecondition: no folder (links
//   included).
Status MakePrivateDirectory(const std::string& path);

// Nobody but this user and root can put anything into it or take anything out of it; others may
// look. Errors as above.
Status RequireOwnDirectory(const std::string& path);

}  // namespace muster
