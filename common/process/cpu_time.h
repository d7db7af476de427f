// Processor time of processes, for the daemon that started them. Threading: any thread.
#pragma once

#include <chrono>

#include "common/base/status.h"

namespace muster::process {

// What a process and all its descendants have used since they began, user and system, all threads,
// those that they have waited for included. It may go back: who ends and is waited for by none of
// them takes its time along.
//   kNotFound: no such process.
Result<std::chrono::milliseconds> CpuTime(int pid);

}  // namespace muster::process
