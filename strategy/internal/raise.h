// From the errors that are values to the one that is thrown.
#pragma once

#include "common/base/status.h"
#include "strategy/error.h"

namespace muster {

Status ToStatus(const Error& error);
// `status` is not OK.
Error ToError(const Status& status);
[[noreturn]] void raise(const Status& status);

}  // namespace muster
