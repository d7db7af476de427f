// So many bytes, for people.
#pragma once

#include <cstdint>
#include <string>

namespace muster {

// "1.5 MiB", "17 B"
std::string ByteCount(std::uint64_t bytes);

}  // namespace muster
