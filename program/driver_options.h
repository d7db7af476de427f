// How a driver hands out closures, as the environment of its process says, by TensorFlow's names.
#pragma once

#include "dispatch/driver.h"

#include "common/base/environment.h"
#include "common/base/status.h"

namespace muster::program::internal {

//   kInvalidArgument: a variable holds no such number; says which, and what it may be.
Result<dispatch::Driver::Options> DriverOptions(const Environment& environment);

}  // namespace muster::program::internal
