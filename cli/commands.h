// One function for each command: call, print, answer an exit code. They are given everything they
// touch, so tests run them against a scripted coordinator.
#pragma once

#include <cstdint>
#include <string>

#include "cli/context.h"
#include "cli/exit_code.h"
#include "cli/terminal.h"
#include "muster/v1/jobs.pb.h"

namespace muster::cli {

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

// The text of `describe`.
std::string DescribeText(const Terminal& terminal, const v1::Job& job, std::int64_t now_ms);

}  // namespace muster::cli
