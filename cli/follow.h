// Waiting for a job, through losses of the coordinator.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "cli/commands.h"

namespace muster::cli {

struct FollowOptions {
  std::string job;
  // Progress and events on err.
  bool show = false;
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  // Puts the job file's places into an error; may be empty.
  std::function<std::string(const std::string&)> locate = {};
};

// How long a coordinator may be gone before a wait for a job gives up with kUnreachable.
inline constexpr std::chrono::minutes kPatience{5};

// Returns when the job has ended (its exit code), the timeout has passed (kTimedOut) or Ctrl-C was
// pressed (kInterrupted); the last two leave the job alone and say how to come back.
ExitCode Follow(const Context& context, const FollowOptions& follow);

}  // namespace muster::cli
