#include "common/messages/metric_sums.h"

#include <random>
#include <utility>
#include <vector>

#include "muster/v1/common.pb.h"
#include "tests/support/catch.h"

namespace muster {
namespace {

constexpr int kBuckets = 64;

v1::MetricSums Scores(const std::vector<std::pair<int, bool>>& bucket_and_label) {
  v1::MetricSums sums;
  sums.mutable_auc_positive()->Resize(kBuckets, 0);
  sums.mutable_auc_negative()->Resize(kBuckets, 0);
  for (const auto& [bucket, positive] : bucket_and_label) {
    auto* counts = positive ? sums.mutable_auc_positive() : sums.mutable_auc_negative();
    counts->Set(bucket, counts->Get(bucket) + 1);
    sums.set_examples(sums.examples() + 1);
  }
  return sums;
}

TEST_CASE("AUC counts the pairs that are ordered rightly, and ties by half", "[messages][unit]") {
  std::mt19937 random(7);
  std::vector<std::pair<int, bool>> scores;
  for (int i = 0; i < 200; ++i) {
    const bool positive = random() % 3 == 0;
    scores.emplace_back(static_cast<int>(random() % 40) + (positive ? 10 : 0), positive);
  }
  double right = 0, pairs = 0;
  for (const auto& [high, is_positive] : scores) {
    for (const auto& [low, also_positive] : scores) {
      if (!is_positive || also_positive) continue;
      pairs += 1;
      right += high > low ? 1 : high == low ? 0.5 : 0;
    }
  }

  CHECK(AreaUnderCurve(Scores(scores)) == Approx(right / pairs).epsilon(1e-12));
}

// tf.keras.metrics.AUC divides without NaN: an empty class makes every rate of it 0.
TEST_CASE("AUC is 0 when one class is empty", "[messages][unit]") {
  CHECK(AreaUnderCurve(Scores({{3, true}, {5, true}})) == 0);
  CHECK(AreaUnderCurve(Scores({{3, false}, {5, false}})) == 0);
  CHECK(AreaUnderCurve(v1::MetricSums()) == 0);
}

TEST_CASE("weighted counts have the AUC of as many scores", "[messages][unit]") {
  // Two positives of weight 0.5 and 2; one negative of weight 4 ties with the first.
  const std::vector<double> positive{0.5, 2};
  const std::vector<double> negative{4, 0};

  CHECK(AreaUnderCurve(positive, negative) == Approx((0.5 * 4 * 0.5 + 2 * 4) / (2.5 * 4)));
}

TEST_CASE("added sums equal the sums of the whole", "[messages][unit]") {
  v1::MetricSums left = Scores({{1, true}, {2, false}});
  left.set_loss_sum(3);
  v1::MetricSums right = Scores({{1, true}, {9, false}});
  right.set_loss_sum(4);
  right.set_correct(1);

  v1::MetricSums sums;
  AddSums(left, sums);
  AddSums(right, sums);

  CHECK(sums.examples() == 4);
  CHECK(sums.loss_sum() == 7);
  CHECK(sums.correct() == 1);
  CHECK(sums.auc_positive(1) == 2);
  CHECK(sums.auc_negative(9) == 1);
}

}  // namespace
}  // namespace muster
