// Sums for the metrics of a job (common/messages/metric_sums.h), over plain memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster::v1 {
class MetricSums;
}

namespace muster::engine {

// Rows whose largest output is at the label; the first of several equal ones counts.
[[nodiscard]] std::uint64_t CountArgmax(const float* outputs, const std::int64_t* labels,
                                        std::size_t rows, std::size_t classes);
// Outputs above 0 where the label is above 0.5, and the reverse.
[[nodiscard]] std::uint64_t CountSigns(const float* outputs, const float* labels, std::size_t n);
// Adds n scores, sigmoid(output), to the AUC's buckets; of an output that is no number the lowest.
void AddScores(const float* outputs, const float* labels, std::size_t n, v1::MetricSums& sums);

}  // namespace muster::engine
