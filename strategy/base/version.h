// Versions of this library, and of the headers that a program is built with.
//
// Threading: any thread.
#pragma once

#include <string_view>

namespace muster {

// That of these headers, which stays in a program that they were compiled into.
inline constexpr std::string_view kHeaderVersion = "0.1.0";
// That of the library which the program runs with.
std::string_view version();
// The libtorch that it was compiled with: "1.13.0".
std::string_view torch_version();

}  // namespace muster
