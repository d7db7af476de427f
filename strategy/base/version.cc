#include "strategy/base/version.h"

namespace muster {

std::string_view version() { return MUSTER_VERSION; }
std::string_view torch_version() { return MUSTER_TORCH_VERSION; }

}  // namespace muster
