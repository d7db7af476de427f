#include "strategy/base/internal/raise.h"

namespace muster {

Error ToError(const Status& status) {
  return Error(static_cast<ErrorCode>(status.code()), Message(status));
}

Status ToStatus(const Error& error) {
  return MakeStatus(static_cast<StatusCode>(error.code()), error.message());
}

void raise(const Status& status) { throw ToError(status); }

}  // namespace muster
