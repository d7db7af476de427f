// Metrics, losses and summaries over replicas.
#include "strategy/train/metrics.h"

#include "strategy/train/summary.h"
#include "tests/support/catch.h"
#include "tests/support/event_reader.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/train/nets.h"

namespace muster::testing {
namespace {

constexpr std::int64_t kExamples = 24;

// This replica's part of what has kExamples rows.
torch::Tensor mine(const torch::Tensor& all) {
  const std::int64_t rows = kExamples / replica_context().num_replicas_in_sync();
  return all.narrow(0, rows * replica_id(), rows);
}

TEST_CASE("metrics over replicas are what one process counts", "[strategy][unit]") {
  torch::manual_seed(5);
  const torch::Tensor logits = torch::randn({kExamples, 5});
  const torch::Tensor classes = torch::randint(5, {kExamples}, torch::kLong);
  const torch::Tensor scores = torch::randn({kExamples, 1});
  const torch::Tensor labels = (torch::rand({kExamples}) > 0.5).to(torch::kFloat);
  const torch::Tensor weights = torch::rand({kExamples});
  struct All {
    Mean mean, weighted;
    Accuracy accuracy, binary;
    AUC auc, weighted_auc;
    std::vector<double> results() const {
      return {mean.result(),   weighted.result(), accuracy.result(),
              binary.result(), auc.result(),      weighted_auc.result()};
    }
  };
  const auto update = [](const All& all, const torch::Tensor& x, const torch::Tensor& y,
                         const torch::Tensor& s, const torch::Tensor& l, const torch::Tensor& w) {
    all.mean.update(x);
    all.weighted.update(x, w);
    all.accuracy.update(x, y);
    all.binary.update(s, l);
    all.auc.update(s, l);
    all.weighted_auc.update(s, l, w);
  };
  All plain;
  update(plain, logits, classes, scores, labels, weights);
  const std::vector<double> expected = plain.results();
  const auto right = (logits.argmax(1) == classes).to(torch::kFloat64).mean().item<double>();
  CHECK(expected[0] == Approx(logits.to(torch::kFloat64).mean().item<double>()));
  CHECK(expected[1] == Approx((logits * weights.unsqueeze(1)).sum().item<double>() /
                              (weights.sum().item<double>() * 5)));
  CHECK(expected[2] == Approx(right));
  // Every pair of a positive and a negative, the higher score first.
  double pairs = 0;
  double area = 0;
  for (std::int64_t i = 0; i < kExamples; ++i) {
    for (std::int64_t j = 0; j < kExamples; ++j) {
      if (labels[i].item<float>() < 0.5 || labels[j].item<float>() > 0.5) continue;
      ++pairs;
      area += scores[i].item<float>() > scores[j].item<float>() ? 1 : 0;
    }
  }
  CHECK(expected[4] == Approx(area / pairs).margin(2.0 / pairs));

  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto scope = strategy->scope();
    All all;
    const auto inside = strategy->run([&] {
      update(all, mine(logits), mine(classes), mine(scores), mine(labels), mine(weights));
      return all.results();
    });

    const std::vector<double> results = all.results();
    for (std::size_t i = 0; i < results.size(); ++i) {
      CAPTURE(i);
      CHECK(results[i] == Approx(expected[i]).epsilon(1e-12));
      for (const auto& one : inside.values()) CHECK(one[i] == Approx(expected[i]).epsilon(1e-12));
    }
    for (const Metric* metric :
         {static_cast<const Metric*>(&all.mean), static_cast<const Metric*>(&all.auc)}) {
      metric->reset();
      CHECK(metric->result() == 0.0);
    }
    CHECK(all.accuracy.result() == Approx(expected[2]));
  }
}

TEST_CASE("a metric's parts are ON_READ SUM variables of its strategy", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto scope = strategy.scope();
  const Mean loss("loss");

  strategy.run([&] { loss.update(3.0 * (replica_id() + 1), 2.0); });

  REQUIRE(loss.variables().size() == 2);
  const Variable& total = loss.variables()[0];
  CHECK(total.name() == "loss/total");
  CHECK(total.synchronization() == VariableSynchronization::kOnRead);
  CHECK(total.aggregation() == VariableAggregation::kSum);
  CHECK(total.component(0).value().item<double>() == 6);
  CHECK(total.component(1).value().item<double>() == 12);
  CHECK(loss.result() == 4.5);
  CHECK(throws(ErrorCode::kInvalidArgument, "assign_add", [&] { loss.update(1.0); }));
}

TEST_CASE("metrics refuse shapes that do not fit", "[strategy][unit]") {
  const Accuracy accuracy;
  const AUC auc;
  const Mean mean;
  CHECK(throws(ErrorCode::kInvalidArgument, "[2, 3]",
               [&] { accuracy.update(torch::zeros({2, 3}), torch::zeros({4}, torch::kLong)); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "auc",
               [&] { auc.update(torch::zeros({2}), torch::zeros({3})); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "weights of shape [3]",
               [&] { mean.update(torch::zeros({2}), torch::zeros({3})); }));
  mean.update(torch::zeros({0}));
  CHECK(mean.result() == 0);
}

TEST_CASE("an average loss divides by the global batch", "[strategy][unit]") {
  const torch::Tensor losses = torch::tensor({1.0F, 2.0F, 6.0F});
  const torch::Tensor weights = torch::tensor({1.0F, 0.0F, 0.5F});
  const auto value = [](const torch::Tensor& tensor) { return tensor.item<float>(); };

  CHECK(value(compute_average_loss(losses, 6)) == 1.5F);
  CHECK(value(compute_average_loss(losses)) == 3.0F);
  CHECK(value(compute_average_loss(losses, 2, weights)) == 2.0F);
  CHECK(value(compute_average_loss(losses, 2, torch::tensor(2.0F))) == 9.0F);
  CHECK(value(compute_average_loss(torch::ones({2, 3}), 4, torch::tensor({1.0F, 3.0F}))) == 3.0F);
  CHECK(value(compute_average_loss(torch::zeros({0}))) == 0.0F);
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const float n = static_cast<float>(strategy->num_replicas_in_sync());
    const auto scope = strategy->scope();
    const auto found = strategy->run([&] { return value(compute_average_loss(losses)); });
    const auto penalty = strategy->run([&] { return value(scale_regularization_loss(losses)); });
    CHECK(found[0] == Approx(3.0F / n));
    CHECK(penalty[0] == Approx(9.0F / n));
    CHECK(value(compute_average_loss(losses, 3)) == 3.0F);
    CHECK(throws(ErrorCode::kFailedPrecondition, "cross-replica",
                 [&] { (void)compute_average_loss(losses); }));
    CHECK(throws(ErrorCode::kFailedPrecondition, "cross-replica",
                 [&] { (void)scale_regularization_loss(losses); }));
  }
}

TEST_CASE("an average loss needs a global batch that makes sense", "[strategy][unit]") {
  CHECK(throws(ErrorCode::kInvalidArgument, "global batch of 0",
               [] { (void)compute_average_loss(torch::ones({2}), 0); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "scalar",
               [] { (void)compute_average_loss(torch::ones({})); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "weights of shape [3]",
               [] { (void)compute_average_loss(torch::ones({2}), 2, torch::ones({3})); }));
}

TEST_CASE("of the replicas' summaries the first one's is written", "[spec][MIR-23]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const TempFolder folder;
    {
      const auto scope = strategy->scope();
      SummaryWriter writer(folder / "logs");

      strategy->run([&] { writer.scalar("id", replica_id(), 7); });
      writer.flush();

      const auto events = testing::ReadEvents(testing::OnlyFile(folder / "logs"));
      REQUIRE(events.size() == 2);
      CHECK(events[0].file_version == "brain.Event:2");
      CHECK(events[1].tag == "id");
      CHECK(events[1].step == 7);
      CHECK(events[1].value == 0.0F);
      writer.scalar("loss", torch::tensor({2.5}), 8);
      CHECK(throws(ErrorCode::kInvalidArgument, "loss",
                   [&] { writer.scalar("loss", torch::zeros({2}), 9); }));
      writer.close();
      CHECK(testing::ReadEvents(writer.path()).size() == 3);
      CHECK(
          throws(ErrorCode::kFailedPrecondition, "closed", [&] { writer.scalar("loss", 1.0, 9); }));
    }
  }
}

}  // namespace
}  // namespace muster::testing
