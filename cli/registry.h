// Where the running `muster up`s of this user are written down, so that the other commands find
// them: one small JSON file each in <runtime folder>/up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/environment.h"
#include "common/base/status.h"

namespace muster::cli {

struct Registration {
  int pid = 0;
  // When that process started, as /proc/<pid>/stat tells: a reused pid is another process.
  std::uint64_t start_ticks = 0;
  std::string address = {};
  std::string token_file = {};
  std::string state_directory = {};
  // Milliseconds since 1970.
  std::int64_t started_ms = 0;
};

// $XDG_RUNTIME_DIR/muster, else /tmp/muster-<uid>. Made when missing, mode 0700.
//   kPermissionDenied: it is there but belongs to somebody else, or others may enter it.
Result<std::string> RuntimeDirectory(const Environment& environment);

// Writes this process's registration; it replaces an earlier one of the same pid.
Status Register(const std::string& runtime_directory, Registration registration);
void Unregister(const std::string& runtime_directory);

// The newest `up` that still runs; files of dead ones are removed on the way.
std::optional<Registration> NewestUp(const std::string& runtime_directory);

}  // namespace muster::cli
