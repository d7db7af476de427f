// `muster up`: a cluster on this machine, as processes of its own, for as long as this one lives.
#pragma once

#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "common/base/environment.h"
#include "common/base/scheduler.h"

namespace muster::cli {

// Files in the state folder (mode 0700): token (0600), address (host:port of the coordinator),
// coordinator/ ps-0/ worker-0/ ... (theirs), logs/<task>.log.
//
// Prints one line beginning with "ready" on stdout when every task is registered. Ends on SIGINT,
// SIGTERM or SIGHUP: a checkpoint of each running job is saved, closures in flight finish (within
// --drain-timeout), and all daemons end.
//   kDone: drained.  kJobFailed: a daemon did not start, stayed down or did not drain.  kRefused:
//   another `up` holds the state folder, or it cannot be made there.
ExitCode Up(const Options& options, const Terminal& terminal, const Environment& environment,
            const Clock& clock, Interrupt& interrupt);

}  // namespace muster::cli
