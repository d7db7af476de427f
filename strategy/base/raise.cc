#include "strategy/base/internal/raise.h"

namespace muster {

Error ToError(const Status& status) {
  return Error(static_cast<ErrorCode>(status.code()), Message(status));
}

// What was thrown is an error, whatever code it was given.
Status ToStatus(const Error& error) {
  const ErrorCode code = error.code() == ErrorCode::kOk ? ErrorCode::kUnknown : error.code();
  return MakeStatus(static_cast<StatusCode>(code), error.message());
}

void raise(const Status& status) { throw ToError(status); }

}  // namespace muster
