// Other programs as parts of a measurement.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace muster::bench {

// Runs a program to its end, found in PATH where its name has no slash; its stdout.
//   kInternal: it did not end with 0; says what it wrote, to stderr too.  kNotFound: no such
//   program.  kDeadlineExceeded: not within `limit`.
Result<std::string> Execute(const std::vector<std::string>& argv, std::chrono::milliseconds limit);

}  // namespace muster::bench
