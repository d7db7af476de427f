// What makes a launched command wrong before anything runs; part of ValidateJob().
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/config/job_yaml/problem.h"

namespace muster::v1 {
class JobSpec;
}  // namespace muster::v1

namespace muster::config {

inline constexpr std::uint32_t kMostProcessesPerWorker = 1'024;
inline constexpr int kMostLaunchFiles = 256;

// Looks at a spec with a command, at everything but its name.
void ValidateLaunch(const v1::JobSpec& spec, Problems& problems);

}  // namespace muster::config
