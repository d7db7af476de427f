// Which Muster this is.
#pragma once

#include <string_view>

namespace muster {

// "0.1.0", as CMakeLists.txt says: that of every program and of the library.
[[nodiscard]] std::string_view Version();

}  // namespace muster
