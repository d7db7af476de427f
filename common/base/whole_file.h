// A small file, whole, in memory.
#pragma once

#include <cstddef>
#include <string>

#include "common/base/status.h"

namespace muster {

inline constexpr std::size_t kMostOfAFile = std::size_t{16} << 20;

//   FromErrno()'s, "read PATH": it cannot be opened or read, as a folder or a file of a host that
//   is gone.  kResourceExhausted: it has more than `most` bytes.
Result<std::string> ReadWholeFile(const std::string& path, std::size_t most = kMostOfAFile);

}  // namespace muster
