// One function for each command: call, print, answer an exit code. They are given everything they
// touch, so tests run them against a scripted coordinator.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
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

class Interrupt;

// Between two attempts to reach a coordinator that is gone.
inline constexpr std::chrono::milliseconds kRetry{500};

// How long a coordinator may be gone before a wait for a job gives up with kUnreachable.
inline constexpr std::chrono::minutes kPatience{5};
// The same for one that has not answered yet: it may be starting, or the address is wrong.
inline constexpr std::chrono::seconds kFirstPatience{5};

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

ExitCode Submit(const Context& context);
ExitCode Jobs(const Context& context);
ExitCode Describe(const Context& context);
ExitCode Logs(const Context& context);
ExitCode Stop(const Context& context);
ExitCode Wait(const Context& context);
ExitCode ShowStatus(const Context& context);
ExitCode Top(const Context& context);
// kDone: all tasks are up.  kTimedOut: not within the limit; says who is missing.
ExitCode WaitUntilReady(const Context& context);
ExitCode CheckpointsList(const Context& context);
ExitCode CheckpointsVerify(const Context& context);
ExitCode CheckpointsExport(const Context& context);
// kRefused: some of what should go is still there; says which and why.
ExitCode CheckpointsGc(const Context& context);
// kDone: the file is there, whole and synced; after a failure it is as it was.
ExitCode Backup(const Context& context);
ExitCode Version(const Context& context);
ExitCode Bench(const Context& context);

// Runs the command that the options name; `up` is not among them (up/up.h).
ExitCode RunCommand(const Context& context);

// "error: ..." on err, with -o json ErrorJson() on out, and the code that belongs to it.
ExitCode Fail(const Context& context, const Status& status,
              const std::vector<std::string>& problems = {});

// The text of `describe`.
std::string DescribeText(const Terminal& terminal, const v1::Job& job, std::int64_t now_ms);

}  // namespace muster::cli
