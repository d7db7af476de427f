// Numbers in a process's environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/environment.h"
#include "common/base/status.h"

namespace muster {

// Seconds up to a million, "2" or "0.5". Nothing: the variable is not set, or empty.
//   kInvalidArgument: anything else; says the variable, what it has and what it may have.
Result<std::optional<std::chrono::milliseconds>> SecondsIn(const Environment& environment,
                                                           const std::string& name);
// The same for a whole number from 0.
Result<std::optional<std::uint32_t>> CountIn(const Environment& environment,
                                             const std::string& name);

}  // namespace muster
