// A user's program on its way to the coordinator: what the command line says of it as a job, and
// the executable itself.
#pragma once

#include <string>

#include "cli/options.h"
#include "common/base/status.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::cli {

// The spec of `submit ... -- PROGRAM ARGUMENTS`, without the file's SHA-256. Named after the file
// unless --name says otherwise.
//   kInvalidArgument: no such file, a folder, not executable, a script, no executable of this
//   machine; a name or an argument that cannot be.
Result<v1::JobSpec> ProgramJob(const Options& options);

}  // namespace muster::cli
