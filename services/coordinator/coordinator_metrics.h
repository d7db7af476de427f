// The coordinator's part of /metrics. Threading: the coordinator's strand.
#pragma once

#include "coordinator/coordinator.h"
#include "services/admin/metrics.h"

namespace muster::coordinator {

// The cluster's tasks, and the jobs that have not ended, or not for long.
void AddMetrics(const Coordinator& core, std::int64_t now_ms, services::Samples& samples);

}  // namespace muster::coordinator
