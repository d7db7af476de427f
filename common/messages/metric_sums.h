// The sums from which a job's and a program's metrics are made. They add up over batches, workers
// and replicas.
#pragma once

#include <cstddef>
#include <span>

namespace muster::v1 {
class MetricSums;
}

namespace muster {

// Scores fall into so many buckets of equal width, from 0 to 1.
inline constexpr std::size_t kAucBuckets = 4096;

void AddSums(const v1::MetricSums& more, v1::MetricSums& total);

// The area under the ROC curve by the trapezoid rule, from how many scores of each class fell into
// which bucket: a pair within one bucket counts half. 0 when one of the classes is empty, as
// tf.keras.metrics.AUC answers.
[[nodiscard]] double AreaUnderCurve(std::span<const double> positive,
                                    std::span<const double> negative);
[[nodiscard]] double AreaUnderCurve(const v1::MetricSums& sums);

}  // namespace muster
