// Bytes into a file that is open.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>

#include <unistd.h>

#include "common/base/status.h"

namespace muster::storage {

// All of them, or the error of the write that failed, with `path` for its name: ResourceExhausted
// for a full disk, and the others of FromErrno().
inline Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FromErrno(errno, "write " + path);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return Ok();
}

}  // namespace muster::storage
