// In place of libmuster's own: what a program that was built with another release says of itself.
#include "common/base/version.h"

namespace muster {

std::string_view Version() { return "0.0.1"; }

}  // namespace muster
