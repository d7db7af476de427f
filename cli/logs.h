// Lines that a job's processes have written.
#pragma once

#include "cli/context.h"
#include "muster/v1/jobs.pb.h"

namespace muster::cli {

// One line on out: time, task and text, or a JSON document with -o json.
void PrintLine(const Context& context, const v1::LogRecord& record);

}  // namespace muster::cli
