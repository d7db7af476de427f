// Waiting for a job, through losses of the coordinator.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "cli/context.h"
#include "muster/v1/jobs.pb.h"

namespace muster::cli {

// Between two attempts to reach a coordinator that is gone.
inline constexpr std::chrono::milliseconds kRetry{500};

// How long a coordinator may be gone before a wait for a job gives up with kUnreachable.
inline constexpr std::chrono::minutes kPatience{5};
// The same for one that has not answered yet: it may be starting, or the address is wrong.
inline constexpr std::chrono::seconds kFirstPatience{5};

struct FollowOptions {
  std::string job;
  // Progress and events on err.
  bool show = false;
  // What the job's processes write, on out, from its beginning; not with -o json.
  bool lines = false;
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  // Puts the job file's places into an error; may be empty.
  std::function<std::string(const std::string&)> locate = {};
  // The job as it was before; -o json shows it when nothing newer was seen.
  std::optional<v1::Job> known = std::nullopt;
};

// Returns when the job has ended (its exit code), the timeout has passed (kTimedOut) or Ctrl-C was
// pressed (kInterrupted); the last two leave the job alone and say how to come back. With -o json
// the job as it was last seen, which is its end unless it goes on, is then printed once on out; an
// error where it was never seen.
ExitCode Follow(const Context& context, const FollowOptions& follow);

}  // namespace muster::cli
