// From the errors that are values to the one that is thrown.
#pragma once

#include <utility>

#include "common/base/status.h"
#include "strategy/base/error.h"

namespace muster {

Status ToStatus(const Error& error);
// `status` is not OK.
Error ToError(const Status& status);
[[noreturn]] void raise(const Status& status);

inline void raise_unless_ok(const Status& status) {
  if (!status.ok()) raise(status);
}
template <class T>
T value_of(Result<T> result) {
  raise_unless_ok(result.status());
  return *std::move(result);
}

}  // namespace muster
