#include "cli/exit_code.h"

#include <exception>

#include "muster/v1/jobs.pb.h"

namespace muster::cli {

ExitCode CodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return ExitCode::kDone;
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
      return ExitCode::kUsage;
    case StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case StatusCode::kAlreadyExists:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kResourceExhausted:
    case StatusCode::kAborted:
    case StatusCode::kUnknown:  // a disk failed
    case StatusCode::kUnimplemented:
      return ExitCode::kRefused;
    case StatusCode::kUnauthenticated:
    case StatusCode::kPermissionDenied:
      return ExitCode::kForbidden;
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return ExitCode::kUnreachable;
    case StatusCode::kDataLoss:
      return ExitCode::kJobFailed;
    case StatusCode::kCancelled:
      return ExitCode::kInterrupted;
    default:
      return ExitCode::kBug;
  }
}

Status OfFiles(const Status& status) {
  if (status.code() != StatusCode::kPermissionDenied) return status;
  return FailedPrecondition("{}", Message(status));
}

ExitCode CodeOf(const v1::Job& job) {
  switch (job.state()) {
    case v1::JOB_STATE_FAILED:
      // The same mistake that a submission is refused for, found when no one waited for the answer.
      return job.reason() == "REFUSED" ? ExitCode::kUsage : ExitCode::kJobFailed;
    case v1::JOB_STATE_CANCELLED:
      return ExitCode::kCancelled;
    default:
      return ExitCode::kDone;
  }
}

ExitCode Guarded(const std::function<ExitCode()>& run, std::ostream& err) {
  try {
    return run();
  } catch (const std::exception& error) {
    err << "error: a bug of Muster: " << error.what() << '\n';
    return ExitCode::kBug;
  }
}

ExitCode Flushed(std::ostream& out, ExitCode code, std::ostream& err) {
  if (out.flush() || code != ExitCode::kDone) return code;
  err << "error: standard output took no more: it is closed, its reader has gone, or its disk is "
         "full\n";
  return ExitCode::kJobFailed;
}

}  // namespace muster::cli
