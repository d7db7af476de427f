// The machine's own time, for what takes a Clock and runs no scheduler.
#pragma once

#include "common/base/scheduler.h"

namespace muster {

// Threading: any thread. Lives as long as the process.
const Clock& RealClock();

}  // namespace muster
