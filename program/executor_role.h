// The roles that never return from Init(): the executor and the probe.
#pragma once

#include <memory>

#include "program/runtime.h"

#include "common/process/message_pipe.h"
#include "muster/v1/program.pb.h"

namespace muster::program::internal {

// What this process says of its program: functions, their number, the ABI.
v1::ProgramReady Describe(const Options& options);

// Serves the registered functions until the daemon's pipe closes; then the process ends at once.
[[noreturn]] void ServeAsExecutor(const v1::ProgramStart& start, process::MessagePipe& pipe,
                                  const Options& options);

// Says what the program is and ends.
[[noreturn]] void AnswerAsProbe(process::MessagePipe& pipe, const Options& options);

}  // namespace muster::program::internal
