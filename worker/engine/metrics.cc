#include "worker/engine/metrics.h"

#include <algorithm>
#include <cmath>

#include "common/messages/metric_sums.h"
#include "muster/v1/common.pb.h"

namespace muster::engine {

std::uint64_t CountArgmax(const float* outputs, const std::int64_t* labels, std::size_t rows,
                          std::size_t classes) {
  std::uint64_t correct = 0;
  for (std::size_t i = 0; i < rows; ++i, outputs += classes) {
    correct += std::max_element(outputs, outputs + classes) - outputs == labels[i];
  }
  return correct;
}

std::uint64_t CountSigns(const float* outputs, const float* labels, std::size_t n) {
  std::uint64_t correct = 0;
  for (std::size_t i = 0; i < n; ++i) correct += (outputs[i] > 0.0f) == (labels[i] > 0.5f);
  return correct;
}

void AddScores(const float* outputs, const float* labels, std::size_t n, v1::MetricSums& sums) {
  auto& positive = *sums.mutable_auc_positive();
  auto& negative = *sums.mutable_auc_negative();
  if (positive.empty()) positive.Resize(kAucBuckets, 0);
  if (negative.empty()) negative.Resize(kAucBuckets, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const double score = 1.0 / (1.0 + std::exp(-static_cast<double>(outputs[i])));
    // What is no number counts as the lowest score, as in a program's AUC.
    const double place = score >= 0 ? score * kAucBuckets : 0;
    const auto bucket = std::min(kAucBuckets - 1, static_cast<std::size_t>(place));
    auto& counts = labels[i] > 0.5f ? positive : negative;
    ++counts[static_cast<int>(bucket)];
  }
}

}  // namespace muster::engine
