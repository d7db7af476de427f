// Whether a program and a coordinator of another version understand each other.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace muster {

// Who says nothing of its version is taken as it is: OK, and no warning.
struct VersionSkew {
  // kFailedPrecondition: of another major version; their messages need not be each other's.
  Status refusal;
  // What to tell when it is of another minor version; empty: nothing.
  std::string warning;
};

// Versions as "1.4.2". `who` has the first: "this program", "worker:1".
VersionSkew CompareVersions(std::string_view who, std::string_view version,
                            std::string_view coordinator);

// Whether both are of one release: of one major and one minor version. What is no version is of
// none.
bool SameRelease(std::string_view one, std::string_view other);

}  // namespace muster
