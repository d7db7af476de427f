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

// A file that can be run on a host like this one. kInvalidArgument: as above; a script, unless
// `scripts`.
Status CheckRunnable(const std::string& path, bool scripts);
v1::RestartPolicy RestartPolicyOf(const Options& options);
// Stands for a file's SHA-256 until it has been sent.
inline const std::string kNoSha256(64, '0');

}  // namespace muster::cli
