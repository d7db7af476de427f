// `muster drain` and `muster undrain`: a task is taken out of work, and let in again.
#pragma once

#include <string>

#include "cli/context.h"
#include "cli/options.h"

namespace CLI {
class App;
}

namespace muster::cli {

void AddDraining(CLI::App& app, Options& options);

// Waits until the task's process has ended, and says whom it waits for.
//   kTimedOut: not within --timeout; the drain goes on.
ExitCode Drain(const Context& context);
ExitCode Undrain(const Context& context);

// A line for each task that drains or was taken out, for `status`.
std::string TakenOutText(const v1::ClusterStatus& status);

}  // namespace muster::cli
