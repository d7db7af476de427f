// Sums for the metrics of a job, over plain memory. They add up over batches and workers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster::v1 {
class MetricSums;
}

namespace muster::engine {

// Scores fall into this many buckets of equal width of sigmoid(output).
inline constexpr std::size_t kAucBuckets = 4096;

// Rows whose largest output is at the label; the first of several equal ones counts.
[[nodiscard]] std::uint64_t CountArgmax(const float* outputs, const std::int64_t* labels,
                                        std::size_t rows, std::size_t classes);
// Outputs above 0 where the label is above 0.5, and the reverse.
[[nodiscard]] std::uint64_t CountSigns(const float* outputs, const float* labels, std::size_t n);
// Adds n scores to the AUC's buckets.
void AddScores(const float* outputs, const float* labels, std::size_t n, v1::MetricSums& sums);

// Adds the sums of a part of a batch.
void AddSums(const v1::MetricSums& part, v1::MetricSums& total);

// Area under the ROC curve from the buckets, ties within a bucket counting half. 0.5 when one of
// the classes is empty.
[[nodiscard]] double AreaUnderCurve(const v1::MetricSums& sums);

}  // namespace muster::engine
