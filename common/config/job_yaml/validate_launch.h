// What makes a launched command wrong before anything runs; part of ValidateJob().
#pragma once

#include "common/config/job_yaml/problem.h"

namespace muster::v1 {
class JobSpec;
}  // namespace muster::v1

namespace muster::config {

// Looks at a spec with a command, at everything but its name.
void ValidateLaunch(const v1::JobSpec& spec, Problems& problems);

}  // namespace muster::config
