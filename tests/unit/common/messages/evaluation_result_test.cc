#include "common/messages/evaluation_result.h"

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("only the metrics that the job asks for are reported", "[messages][unit]") {
  v1::MetricSums sums;
  sums.set_examples(4);
  sums.set_correct(3);
  sums.set_loss_sum(2);
  v1::JobSpec spec;

  CHECK_FALSE(Summarise(sums, spec, 9).has_accuracy());

  spec.add_metrics(v1::METRIC_ACCURACY);
  const v1::EvaluationResult result = Summarise(sums, spec, 9);
  CHECK(result.accuracy() == 0.75);
  CHECK(result.loss() == 0.5);
  CHECK(result.step() == 9);
}

TEST_CASE("an AUC is reported of scores alone and is 0 without positives", "[messages][unit]") {
  v1::MetricSums sums;
  sums.set_examples(4);
  v1::JobSpec spec;
  spec.add_metrics(v1::METRIC_AUC);

  CHECK_FALSE(Summarise(sums, spec, 9).has_auc());

  sums.mutable_auc_positive()->Resize(2, 0);
  sums.mutable_auc_negative()->Resize(2, 2);
  const v1::EvaluationResult result = Summarise(sums, spec, 9);
  CHECK(result.has_auc());
  CHECK(result.auc() == 0);
}

}  // namespace
}  // namespace muster
