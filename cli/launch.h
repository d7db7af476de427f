// A command on its way to the cluster's workers: `submit --workers 2 -- python3 train.py`.
#pragma once

#include <string>
#include <vector>

#include "cli/job_api.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "common/base/status.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::cli {

// Whether what stands behind `--` is launched, and is no program of --strategy parameter_server:
// because --strategy says so, or where that is not given, since it is a script, or a name that is
// no file here (and so a command of the workers').
bool IsLaunch(const Options& options);

// Whether its processes come and go one by one: multi_worker_mirrored with MIN:MAX.
bool IsElastic(const Options& options);

// The spec, without SHA-256s of what will be sent: the command, where it is a file here; a script
// that is the first argument of a command in PATH; and --send.
//   kInvalidArgument: a file that is not there or cannot be run, a folder of which a part cannot be
//   sent, a name or an argument that cannot be.
Result<v1::JobSpec> LaunchJob(const Options& options);

// Sends its files unless the coordinator has them, and writes their SHA-256s into the spec. Errors
// are UploadArchive()'s; kAborted, too: files of a folder have come or gone since LaunchJob().
Status UploadLaunch(const Terminal& terminal, JobApi& api, const Options& options,
                    v1::JobSpec& spec);

}  // namespace muster::cli
