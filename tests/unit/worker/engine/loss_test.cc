#include <cmath>
#include <limits>

#include "common/messages/metric_sums.h"
#include "tests/support/catch.h"
#include "tests/unit/worker/engine/fixture.h"
#include "worker/engine/metrics.h"
#include "worker/engine/runtime.h"

namespace muster::engine {
namespace {

using test::AddParameter;
using test::Bench;
using test::MakeColumn;

v1::JobSpec Linear(v1::LossKind kind) {
  v1::JobSpec spec;
  AddParameter(spec, "w", {1});
  spec.mutable_model()->set_forward("def forward(self, x):\n    return x * self.w\n");
  spec.mutable_loss()->set_kind(kind);
  spec.mutable_loss()->set_label("y");
  return spec;
}

Status StepStatus(const v1::JobSpec& spec, const data::Element& batch) {
  auto bench = Bench::Make(spec, batch);
  if (!bench.ok()) return bench.status();
  bench->values[0].assign(bench->values[0].size(), 1.0f);
  return bench->Train(1, batch).status();
}

TEST_CASE("bce with logits takes labels of any number type and [batch, 1] outputs",
          "[engine][unit]") {
  v1::JobSpec spec = Linear(v1::LOSS_KIND_BCE_WITH_LOGITS);
  spec.add_metrics(v1::METRIC_ACCURACY);
  spec.add_metrics(v1::METRIC_AUC);
  const data::Element batch{{MakeColumn<float>("x", {3, 1}, {2, -1, 0.5}),
                             MakeColumn<std::int64_t>("y", {3}, {1, 0, 0})}};
  auto bench = Bench::Make(spec, batch).value();
  bench.Value("w") = {1};

  const auto trained = bench.Train(1, batch).value();
  const auto evaluated = bench.Evaluate(batch).value();

  const double want =
      std::log1p(std::exp(-2.0)) + std::log1p(std::exp(-1.0)) + std::log1p(std::exp(0.5));
  CHECK(trained.loss_sum() == Approx(want));
  CHECK(trained.correct() == 2);
  CHECK(trained.auc_positive_size() == 0);  // training results stay small
  CHECK(evaluated.loss_sum() == Approx(want));
  CHECK(evaluated.auc_positive_size() == static_cast<int>(kAucBuckets));
  CHECK(AreaUnderCurve(evaluated) == 1.0);
}

TEST_CASE("mse is the mean over all elements, [batch] and [batch, 1] are the same shape",
          "[engine][unit]") {
  const v1::JobSpec spec = Linear(v1::LOSS_KIND_MSE);
  const data::Element batch{
      {MakeColumn<float>("x", {2, 1}, {1, 2}), MakeColumn<float>("y", {2}, {0, 4})}};
  auto bench = Bench::Make(spec, batch).value();
  bench.Value("w") = {1};

  CHECK(bench.Train(1, batch).value().loss_sum() == Approx(2 * (1 + 4) / 2.0));
  CHECK(bench.Gradient("w")[0] == Approx((2 * 1 * 1 + 2 * -2 * 2) / 2.0));
}

TEST_CASE("shapes that a loss cannot take are named with both sides", "[engine][unit]") {
  const data::Element wide{
      {MakeColumn<float>("x", {2, 3}, {1, 2, 3, 4, 5, 6}), MakeColumn<float>("y", {2}, {0, 1})}};
  CHECK(Message(StepStatus(Linear(v1::LOSS_KIND_MSE), wide)) ==
        "step 1: forward returns float32 [2, 3] but label \"y\" is float32 [2]; mse needs the same "
        "shape");
  CHECK(Message(StepStatus(Linear(v1::LOSS_KIND_BCE_WITH_LOGITS), wide)) ==
        "step 1: what forward returns is float32 [2, 3]; wanted [batch] or [batch, 1]");
  const data::Element flat{
      {MakeColumn<float>("x", {2}, {1, 2}), MakeColumn<float>("y", {2}, {0, 1})}};
  CHECK(Message(StepStatus(Linear(v1::LOSS_KIND_SOFTMAX_CROSS_ENTROPY), flat)) ==
        "step 1: forward returns float32 [2]; softmax_cross_entropy needs [batch, classes]");
}

TEST_CASE("labels out of range are named with their example", "[engine][unit]") {
  const data::Element classes{{MakeColumn<float>("x", {2, 3}, {1, 2, 3, 4, 5, 6}),
                               MakeColumn<std::uint8_t>("y", {2}, {2, 3})}};
  CHECK(Message(StepStatus(Linear(v1::LOSS_KIND_SOFTMAX_CROSS_ENTROPY), classes)) ==
        "step 1: label \"y\" is 3 (example 1 of the batch), but forward returns 3 classes: labels "
        "are 0 to 2");
  const data::Element halves{
      {MakeColumn<float>("x", {2, 3}, {1, 2, 3, 4, 5, 6}), MakeColumn<float>("y", {2}, {2, 1.5})}};
  CHECK(Message(StepStatus(Linear(v1::LOSS_KIND_SOFTMAX_CROSS_ENTROPY), halves)) ==
        "step 1: label \"y\" is 1.5 (example 1 of the batch); softmax_cross_entropy needs whole "
        "numbers, 0 to 2");
  const data::Element scores{
      {MakeColumn<float>("x", {2}, {1, 2}), MakeColumn<float>("y", {2}, {0, 7})}};
  CHECK(Message(StepStatus(Linear(v1::LOSS_KIND_BCE_WITH_LOGITS), scores)) ==
        "step 1: label \"y\" is 7 (example 1 of the batch); bce_with_logits needs 0 to 1");
}

TEST_CASE("a loss in source sees the output and columns, and its errors name it",
          "[engine][unit]") {
  v1::JobSpec spec = Linear(v1::LOSS_KIND_UNSPECIFIED);
  spec.mutable_loss()->set_function(
      "def loss(output, y):\n    return torch.mean(torch.abs(output - y))\n");
  spec.add_metrics(v1::METRIC_ACCURACY);
  const data::Element batch{
      {MakeColumn<float>("x", {2}, {1, -2}), MakeColumn<float>("y", {2}, {1, 1})}};
  auto bench = Bench::Make(spec, batch).value();
  bench.Value("w") = {1};
  const auto sums = bench.Train(1, batch).value();
  CHECK(sums.loss_sum() == Approx(3));
  CHECK(sums.correct() == 1);

  spec.mutable_loss()->set_function("def loss(output, y):\n    return torch.meen(output - y)\n");
  CHECK(Message(StepStatus(spec, batch)).find("loss function, line 2, column 12: Unknown") == 0);
  spec.mutable_loss()->set_function(
      "def loss(output, y):\n    return torch.matmul(output, output.reshape([1, 2]))\n");
  CHECK(Message(StepStatus(spec, batch)).find("step 1: loss function, line 2, column 12: ") == 0);
  spec.mutable_loss()->set_function("def loss(output, y):\n    return output - y\n");
  CHECK(Message(StepStatus(spec, batch)) ==
        "step 1: loss function: returns float32 [2]; wanted the mean over the batch, one number");
  spec.mutable_loss()->set_function("def loss(output, z):\n    return output.sum()\n");
  CHECK(Message(StepStatus(spec, batch)).find("loss function: argument \"z\" is no column") == 0);
}

TEST_CASE("a loss in source that writes into the output leaves the metrics theirs",
          "[engine][unit]") {
  v1::JobSpec spec = Linear(v1::LOSS_KIND_UNSPECIFIED);
  spec.mutable_loss()->set_function(
      "def loss(output, y):\n    output.sub_(10.0)\n"
      "    return torch.mean(torch.abs(output + 10.0 - y))\n");
  spec.add_metrics(v1::METRIC_ACCURACY);
  const data::Element batch{
      {MakeColumn<float>("x", {2}, {1, -2}), MakeColumn<float>("y", {2}, {1, 1})}};
  auto bench = Bench::Make(spec, batch).value();
  bench.Value("w") = {1};

  const auto trained = bench.Train(1, batch).value();
  const auto evaluated = bench.Evaluate(batch).value();

  CHECK(trained.loss_sum() == Approx(3));
  CHECK(trained.correct() == 1);
  CHECK(evaluated.correct() == 1);
  CHECK(bench.Gradient("w")[0] == Approx(1));
}

TEST_CASE("the AUC of buckets is that of the scores", "[engine][unit]") {
  v1::MetricSums sums;
  const std::vector<float> scores{-2, -1, 0, 1, 2, 0};
  const std::vector<float> labels{0, 0, 1, 1, 0, 0};
  AddScores(scores.data(), labels.data(), scores.size(), sums);

  // Pairs (positive, negative): 0 beats -2 -1, ties 0, loses to 2; 1 beats -2 -1 0, loses to 2.
  CHECK(AreaUnderCurve(sums) == Approx((2.5 + 3) / 8));
}

TEST_CASE("a score that is no number is the lowest", "[engine][unit]") {
  v1::MetricSums sums;
  const std::vector<float> scores{std::numeric_limits<float>::quiet_NaN(), -2};
  const std::vector<float> labels{1, 0};
  AddScores(scores.data(), labels.data(), scores.size(), sums);

  CHECK(sums.auc_positive(0) == 1);
  CHECK(AreaUnderCurve(sums) == 0);
}

TEST_CASE("the BLAS is told from what is mapped, and the reference one is called slow",
          "[engine][unit]") {
  CHECK(BlasFromMaps("/usr/lib/x86_64-linux-gnu/openblas-openmp/libblas.so.3", false).name ==
        "OpenBLAS");
  CHECK(BlasFromMaps("/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0", false).slow);
  CHECK(BlasFromMaps("", true).name == "MKL");
}

}  // namespace
}  // namespace muster::engine
