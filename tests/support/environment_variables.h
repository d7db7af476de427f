// Variables of this process's environment for a while.
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <utility>

namespace muster::testing {

// They are set while it lives, and not there afterwards.
// Threading: while nobody else looks at the environment.
class EnvironmentVariables {
 public:
  using Values = std::map<std::string, std::string>;

  explicit EnvironmentVariables(Values values) : values_(std::move(values)) {
    for (const auto& [name, value] : values_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~EnvironmentVariables() {
    for (const auto& [name, value] : values_) ::unsetenv(name.c_str());
  }
  EnvironmentVariables(const EnvironmentVariables&) = delete;
  EnvironmentVariables& operator=(const EnvironmentVariables&) = delete;

 private:
  const Values values_;
};

}  // namespace muster::testing
