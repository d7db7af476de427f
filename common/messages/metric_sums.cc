#include "common/messages/metric_sums.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "muster/v1/common.pb.h"

namespace muster {
namespace {

using Counts = google::protobuf::RepeatedField<std::uint64_t>;

void AddCounts(const Counts& more, Counts& total) {
  if (total.size() < more.size()) total.Resize(more.size(), 0);
  for (int i = 0; i < more.size(); ++i) total.Set(i, total.Get(i) + more.Get(i));
}

}  // namespace

void AddSums(const v1::MetricSums& more, v1::MetricSums& total) {
  total.set_examples(total.examples() + more.examples());
  total.set_loss_sum(total.loss_sum() + more.loss_sum());
  total.set_correct(total.correct() + more.correct());
  AddCounts(more.auc_positive(), *total.mutable_auc_positive());
  AddCounts(more.auc_negative(), *total.mutable_auc_negative());
}

double AreaUnderCurve(std::span<const double> positive, std::span<const double> negative) {
  double positives = 0, negatives = 0, area = 0;
  const std::size_t buckets = std::max(positive.size(), negative.size());
  for (std::size_t i = 0; i < buckets; ++i) {
    const double up = i < positive.size() ? positive[i] : 0;
    const double down = i < negative.size() ? negative[i] : 0;
    area += up * (negatives + down / 2);
    positives += up;
    negatives += down;
  }
  return positives == 0 || negatives == 0 ? 0 : area / (positives * negatives);
}

double AreaUnderCurve(const v1::MetricSums& sums) {
  const std::vector<double> positive(sums.auc_positive().begin(), sums.auc_positive().end());
  const std::vector<double> negative(sums.auc_negative().begin(), sums.auc_negative().end());
  return AreaUnderCurve(positive, negative);
}

}  // namespace muster
