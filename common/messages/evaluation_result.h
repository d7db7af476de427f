// From the sums of metrics to the figures that people read.
#pragma once

#include <cstdint>

#include "muster/v1/common.pb.h"
#include "muster/v1/driver.pb.h"

namespace muster {

// Means over sums.examples(); `accuracy` and `auc` only when the job asks for them.
v1::EvaluationResult Summarise(const v1::MetricSums& sums, const v1::JobSpec& spec,
                               std::uint64_t step);

// Whether the job lists this metric.
bool Wants(const v1::JobSpec& spec, v1::Metric metric);

}  // namespace muster
