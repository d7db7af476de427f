#include "worker/engine/metrics.h"

#include <algorithm>
#include <cmath>

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
    const auto bucket = std::min(kAucBuckets - 1, static_cast<std::size_t>(score * kAucBuckets));
    auto& counts = labels[i] > 0.5f ? positive : negative;
    ++counts[static_cast<int>(bucket)];
  }
}

void AddSums(const v1::MetricSums& part, v1::MetricSums& total) {
  total.set_examples(total.examples() + part.examples());
  total.set_loss_sum(total.loss_sum() + part.loss_sum());
  total.set_correct(total.correct() + part.correct());
  const auto add = [](const auto& from, auto& to) {
    if (to.size() < from.size()) to.Resize(from.size(), 0);
    for (int i = 0; i < from.size(); ++i) to.Set(i, to.Get(i) + from.Get(i));
  };
  add(part.auc_positive(), *total.mutable_auc_positive());
  add(part.auc_negative(), *total.mutable_auc_negative());
}

double AreaUnderCurve(const v1::MetricSums& sums) {
  double below = 0, area = 0, positives = 0;
  for (int i = 0; i < sums.auc_positive_size(); ++i) {
    const auto up = static_cast<double>(sums.auc_positive(i));
    const auto down = static_cast<double>(sums.auc_negative(i));
    area += up * (below + down / 2);
    below += down;
    positives += up;
  }
  return positives == 0 || below == 0 ? 0.5 : area / (positives * below);
}

}  // namespace muster::engine
