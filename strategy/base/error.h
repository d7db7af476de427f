// The exception of the public API. Below strategy/ errors are values; here, as in libtorch, they
// throw.
//
// Threading: an Error is a plain value.
#pragma once

#include <iosfwd>
#include <stdexcept>
#include <string>

namespace muster {

// The canonical codes, with the numbers that gRPC gives them (docs/errors.md says what each asks
// of the caller). No error has kOk.
enum class ErrorCode {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT" for ErrorCode::kInvalidArgument.
std::string to_string(ErrorCode code);
std::ostream& operator<<(std::ostream& out, ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);

  ErrorCode code() const { return code_; }
  // The text without the code's name, which what() begins with.
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_;
  std::string message_;
};

[[noreturn]] void raise(ErrorCode code, const std::string& message);

}  // namespace muster
