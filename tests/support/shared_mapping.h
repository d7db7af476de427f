// Which memory of this process others map, too.
#pragma once

#include <cstdint>
#include <fstream>
#include <ios>
#include <sstream>
#include <string>

namespace muster::testing {

// Whether an arena that is shared is mapped there (common/net/arena.h).
inline bool IsShared(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    if (begin <= at && at < end) return line.find("muster-arena") != std::string::npos;
  }
  return false;
}

}  // namespace muster::testing
