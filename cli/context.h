// What a command is given, and how it fails.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cli/exit_code.h"
#include "cli/job_api.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "common/base/environment.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::cli {

// Lifetime: what it points to outlives the command.
struct Context {
  const Options& options;
  const Terminal& terminal;
  const Environment& environment;
  const Clock& clock;
  // Finds the cluster and makes a client; the same one each time.
  std::function<Result<JobApi*>()> connect;
  // Whether Ctrl-C has been pressed.
  std::function<bool()> interrupted;
  // Calls in between two attempts to reach a coordinator that is gone; false: give up (Ctrl-C).
  std::function<bool(std::chrono::milliseconds)> sleep;
  // Runs a program of ours with arguments to its end; the exit code. With `output` what it writes
  // goes there, else to our own stdout and stderr.
  std::function<Result<int>(const std::string& program, const std::vector<std::string>& arguments,
                            std::string* output)>
      run;
};

// "error: ..." on err, with -o json ErrorJson() on out, and the code that belongs to it.
ExitCode Fail(const Context& context, const Status& status,
              const std::vector<std::string>& problems = {});

}  // namespace muster::cli
