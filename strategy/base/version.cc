#include "strategy/base/version.h"

#include "common/base/version.h"

namespace muster {

static_assert(kHeaderVersion == MUSTER_VERSION,
              "strategy/base/version.h and CMakeLists.txt differ");

std::string_view version() { return Version(); }
std::string_view torch_version() { return MUSTER_TORCH_VERSION; }

}  // namespace muster
