// Errors without exceptions: Status, Result<T>, and makers that format.
//
// Codes mean the same everywhere (docs/errors.md): Unavailable, retry elsewhere or later; Aborted,
// you are superseded, stop; FailedPrecondition, fix the state first; ResourceExhausted, slow down;
// DataLoss, page someone. A message says what, which one, actual versus allowed, and what to do.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/core.h>

namespace muster {

using Status = absl::Status;
using StatusCode = absl::StatusCode;
template <class T>
using Result = absl::StatusOr<T>;

[[nodiscard]] inline Status Ok() { return absl::OkStatus(); }

// A status from a code and a finished message (Debian's abseil has a string_view of its own).
[[nodiscard]] Status MakeStatus(StatusCode code, std::string_view message);
// `status` with "context: " before its message; OK stays OK.
[[nodiscard]] Status Annotate(const Status& status, std::string_view context);
// The message as a std::string.
[[nodiscard]] std::string Message(const Status& status);
// "NOT_FOUND: no such job", or "OK".
[[nodiscard]] std::string ToString(const Status& status);
// "NOT_FOUND" for StatusCode::kNotFound.
[[nodiscard]] std::string_view CodeName(StatusCode code);

#define MUSTER_STATUS_MAKER(Name, code)                                         \
  template <class... Args>                                                      \
  [[nodiscard]] Status Name(fmt::format_string<Args...> text, Args&&... args) { \
    return MakeStatus(code, fmt::format(text, std::forward<Args>(args)...));    \
  }
MUSTER_STATUS_MAKER(InvalidArgument, StatusCode::kInvalidArgument)
MUSTER_STATUS_MAKER(NotFound, StatusCode::kNotFound)
MUSTER_STATUS_MAKER(AlreadyExists, StatusCode::kAlreadyExists)
MUSTER_STATUS_MAKER(FailedPrecondition, StatusCode::kFailedPrecondition)
MUSTER_STATUS_MAKER(OutOfRange, StatusCode::kOutOfRange)
MUSTER_STATUS_MAKER(Unimplemented, StatusCode::kUnimplemented)
MUSTER_STATUS_MAKER(Internal, StatusCode::kInternal)
MUSTER_STATUS_MAKER(Unavailable, StatusCode::kUnavailable)
MUSTER_STATUS_MAKER(Aborted, StatusCode::kAborted)
MUSTER_STATUS_MAKER(Cancelled, StatusCode::kCancelled)
MUSTER_STATUS_MAKER(DataLoss, StatusCode::kDataLoss)
MUSTER_STATUS_MAKER(DeadlineExceeded, StatusCode::kDeadlineExceeded)
MUSTER_STATUS_MAKER(ResourceExhausted, StatusCode::kResourceExhausted)
MUSTER_STATUS_MAKER(PermissionDenied, StatusCode::kPermissionDenied)
MUSTER_STATUS_MAKER(Unauthenticated, StatusCode::kUnauthenticated)
MUSTER_STATUS_MAKER(Unknown, StatusCode::kUnknown)
#undef MUSTER_STATUS_MAKER

// A status from errno: ENOENT is NotFound, ENOSPC and EMFILE ResourceExhausted, EACCES and EROFS
// PermissionDenied; of a connection Unavailable; what else fails here (EIO, ESTALE) Unknown.
[[nodiscard]] Status FromErrno(int error, std::string_view what);

}  // namespace muster

#define MUSTER_CONCAT_INNER(a, b) a##b
#define MUSTER_CONCAT(a, b) MUSTER_CONCAT_INNER(a, b)

// Returns the status from the enclosing function unless it is OK.
#define MUSTER_TRY(expression)                                                      \
  do {                                                                              \
    if (::muster::Status muster_try_status = (expression); !muster_try_status.ok()) \
      return muster_try_status;                                                     \
  } while (false)

// MUSTER_TRY_ASSIGN(const Foo foo, MakeFoo()): declares foo, or returns the error.
#define MUSTER_TRY_ASSIGN(declaration, expression) \
  MUSTER_TRY_ASSIGN_INNER(MUSTER_CONCAT(muster_result_, __LINE__), declaration, expression)
#define MUSTER_TRY_ASSIGN_INNER(result, declaration, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return result.status();                      \
  declaration = *std::move(result)

// Aborts on a bug of ours. Never for bytes from a peer, a file or a user.
#define MUSTER_INVARIANT(condition)                                                        \
  do {                                                                                     \
    if (!(condition)) ::muster::internal::InvariantFailed(#condition, __FILE__, __LINE__); \
  } while (false)

namespace muster::internal {
[[noreturn]] void InvariantFailed(const char* condition, const char* file, int line);
}  // namespace muster::internal
