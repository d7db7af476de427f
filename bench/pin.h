// A processor for each side of a measurement.
#pragma once

#include <cstddef>

#include "common/base/status.h"

namespace muster::bench {

// Keeps this thread, and those that it starts, on the nth of the processors that it may use.
//   kFailedPrecondition: there are not so many.
Status PinTo(std::size_t nth);

}  // namespace muster::bench
