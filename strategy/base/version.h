// Versions of this library.
//
// Threading: any thread.
#pragma once

#include <string_view>

namespace muster {

// "0.1.0"
std::string_view version();
// The libtorch that it was compiled with: "1.13.0".
std::string_view torch_version();

}  // namespace muster
