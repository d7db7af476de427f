// An environment of a test's own.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/environment.h"

namespace muster {

[[nodiscard]] inline Environment FixedEnvironment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

}  // namespace muster
