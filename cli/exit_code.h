// What `muster` ends with. docs/cli.md lists the codes for people; tests hold us to them.
#pragma once

#include <functional>
#include <ostream>

#include "common/base/status.h"

namespace muster::v1 {
class Job;
}

namespace muster::cli {

enum class ExitCode : int {
  kDone = 0,
  kJobFailed = 1,  // also: a checkpoint is damaged, a daemon of `up` did not start
  kUsage = 2,      // command line or job file
  kNotFound = 3,
  kRefused = 4,    // conflict, precondition, capacity, a disk that fails
  kForbidden = 5,  // no token, or a wrong one
  kUnreachable = 6,
  kTimedOut = 7,  // `wait` gave up; the job goes on
  kCancelled = 8,
  kBug = 70,
  kInterrupted = 130,  // Ctrl-C; the job goes on
};

// For a call that failed.
ExitCode CodeOf(const Status& status);

// What files of this host answer, for a command that ends with it: that they refuse is no question
// of a token or a role, so it is kFailedPrecondition.
Status OfFiles(const Status& status);

// For a job that has ended; kDone while it has not.
ExitCode CodeOf(const v1::Job& job);

// What `run` answers; kBug, and the words of the exception on `err`, when a library has thrown one
// that nobody expected.
ExitCode Guarded(const std::function<ExitCode()>& run, std::ostream& err);
// kDone becomes kJobFailed, and `err` says why, when `out` could not be written: a closed pipe or a
// full disk must not look like success.
ExitCode Flushed(std::ostream& out, ExitCode code, std::ostream& err);

}  // namespace muster::cli
