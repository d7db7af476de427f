#include "common/base/version.h"

namespace muster {

std::string_view Version() { return MUSTER_VERSION; }

}  // namespace muster
