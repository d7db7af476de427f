// The environment of a process as a value that is passed in, so that nothing below main() calls
// getenv and a test gives whatever it likes.
#pragma once

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace muster {

// The value of a variable; nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

[[nodiscard]] inline Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

}  // namespace muster
