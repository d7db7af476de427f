#include "common/base/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "common/base/utf8.h"

namespace muster {

// The one door through which texts of files, users and libraries enter errors, and with them
// messages: Protobuf refuses a message whole that holds a string which is not UTF-8.
Status MakeStatus(StatusCode code, std::string_view message) {
  if (FirstBadUtf8(message) != std::string_view::npos) {
    return MakeStatus(code, ToValidUtf8(message));
  }
  return Status(code, absl::string_view(message.data(), message.size()));
}

Status Annotate(const Status& status, std::string_view context) {
  if (status.ok()) return status;
  return MakeStatus(status.code(), fmt::format("{}: {}", context, Message(status)));
}

std::string Message(const Status& status) {
  const absl::string_view text = status.message();
  return std::string(text.data(), text.size());
}

std::string_view CodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    default:
      return "UNKNOWN";
  }
}

std::string ToString(const Status& status) {
  if (status.ok()) return "OK";
  return fmt::format("{}: {}", CodeName(status.code()), Message(status));
}

Status FromErrno(int error, std::string_view what) {
  const std::string message = fmt::format("{}: {}", what, std::generic_category().message(error));
  switch (error) {
    case ENOENT:
      return MakeStatus(StatusCode::kNotFound, message);
    case EEXIST:
      return MakeStatus(StatusCode::kAlreadyExists, message);
    case EACCES:
    case EPERM:
    case EROFS:
      return MakeStatus(StatusCode::kPermissionDenied, message);
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case EFBIG:
      return MakeStatus(StatusCode::kResourceExhausted, message);
    // No path of a file, whoever looks.
    case EISDIR:
    case ENOTDIR:
    case ENAMETOOLONG:
      return MakeStatus(StatusCode::kInvalidArgument, message);
    case EADDRINUSE:
      return MakeStatus(StatusCode::kFailedPrecondition, message);
    // A peer is away, or the call may be made again.
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ENOTCONN:
    case ESHUTDOWN:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EAGAIN:
    case EINTR:
    case EINPROGRESS:
      return MakeStatus(StatusCode::kUnavailable, message);
    // This host failed: EIO, ESTALE, ENODEV... Trying again at a peer does not help.
    default:
      return MakeStatus(StatusCode::kUnknown, message);
  }
}

namespace internal {
void InvariantFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: a bug in Muster: \"%s\" does not hold\n", file, line, condition);
  std::abort();
}
}  // namespace internal

}  // namespace muster
