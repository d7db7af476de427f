#include "common/messages/evaluation_result.h"

#include <algorithm>

#include "common/messages/metric_sums.h"

namespace muster {

bool Wants(const v1::JobSpec& spec, v1::Metric metric) {
  return std::find(spec.metrics().begin(), spec.metrics().end(), metric) != spec.metrics().end();
}

v1::EvaluationResult Summarise(const v1::MetricSums& sums, const v1::JobSpec& spec,
                               std::uint64_t step) {
  v1::EvaluationResult result;
  result.set_step(step);
  result.set_examples(sums.examples());
  if (sums.examples() == 0) return result;
  const auto examples = static_cast<double>(sums.examples());
  result.set_loss(sums.loss_sum() / examples);
  if (Wants(spec, v1::METRIC_ACCURACY)) {
    result.set_accuracy(static_cast<double>(sums.correct()) / examples);
  }
  // Training steps send no scores.
  const bool scored = sums.auc_positive_size() > 0 || sums.auc_negative_size() > 0;
  if (scored && Wants(spec, v1::METRIC_AUC)) result.set_auc(AreaUnderCurve(sums));
  return result;
}

}  // namespace muster
