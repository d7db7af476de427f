// Whose trouble an error is; docs/errors.md says what each code means.
#pragma once

#include "common/base/status.h"

namespace muster {

// A host's disk or its limits: full, failing, too many open files. No mistake in a file or a spec.
inline bool IsDiskTrouble(StatusCode code) {
  return code == StatusCode::kResourceExhausted || code == StatusCode::kUnknown;
}

// The cluster's: the same may work when a task, or its host, is back.
inline bool IsTransient(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
         code == StatusCode::kCancelled || code == StatusCode::kAborted ||
         code == StatusCode::kUnknown;
}

}  // namespace muster
