// What memory comes in.
#pragma once

#include <cstddef>

namespace muster {

// A page of x86-64. Hosts with larger ones have multiples of it.
inline constexpr std::size_t kPageBytes = 4096;

}  // namespace muster
