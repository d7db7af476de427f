#include "strategy/base/error.h"

#include <ostream>

#include "strategy/base/internal/raise.h"

namespace muster {

std::string to_string(ErrorCode code) {
  return std::string(CodeName(static_cast<StatusCode>(code)));
}

std::ostream& operator<<(std::ostream& out, ErrorCode code) { return out << to_string(code); }

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(to_string(code) + ": " + message), code_(code), message_(message) {}

void raise(ErrorCode code, const std::string& message) { throw Error(code, message); }

Error ToError(const Status& status) {
  return Error(static_cast<ErrorCode>(status.code()), Message(status));
}

Status ToStatus(const Error& error) {
  return MakeStatus(static_cast<StatusCode>(error.code()), error.message());
}

void raise(const Status& status) { throw ToError(status); }

}  // namespace muster
