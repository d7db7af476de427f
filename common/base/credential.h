// Secrets that systemd hands to a unit (LoadCredential=).
#pragma once

#include <filesystem>
#include <string>

#include "common/base/environment.h"

namespace muster {

// Whether systemd has put it where only this unit's processes come.
inline bool IsCredential(const std::string& path) {
  const std::string folder = ProcessEnvironment()("CREDENTIALS_DIRECTORY").value_or("");
  return !folder.empty() && std::filesystem::path(path).parent_path() == folder;
}

}  // namespace muster
