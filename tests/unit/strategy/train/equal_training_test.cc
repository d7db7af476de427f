// An MLP on Fashion-MNIST over 1, 2 and 4 devices has the losses of one plain libtorch loop with
// the same seed and global batch. The table in docs/modules.md is of this test.
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include "strategy/tpu/tpu_strategy.h"
#include "strategy/tpu/tpu_system.h"
#include "tests/support/catch.h"
#include "tests/support/fashion.h"
#include "tests/unit/strategy/train/nets.h"

namespace muster {
namespace {

using testing::replica_id;
using testing::fashion::Course;
using testing::fashion::Examples;
using testing::fashion::kBatch;
using testing::fashion::PlainLosses;

constexpr std::array<std::uint64_t, 5> kSeeds = {1, 2, 3, 5, 8};

template <class Torch, class Options>
std::vector<double> LossesUnder(Strategy& strategy, Course course, const Options& options) {
  const int replicas = strategy.num_replicas_in_sync();
  const auto scope = strategy.scope();
  const auto net = strategy.distribute(course.Begin());
  const auto optimizer = strategy.optimizer<Torch>(net, options);
  const auto each = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
  std::vector<double> losses;
  for (int step = 0; step < course.steps; ++step) {
    const auto parts = strategy.run([&] {
      const std::int64_t rows = kBatch / replicas;
      const Examples mine = course.Rows(step, rows * replica_id(), rows);
      optimizer.zero_grad();
      const torch::Tensor loss = compute_average_loss(
          torch::nn::functional::cross_entropy(net->forward(mine.images), mine.labels, each),
          kBatch);
      loss.backward();
      optimizer.step();
      return loss.detach();
    });
    losses.push_back(strategy.reduce(ReduceOp::kSum, parts).template item<double>());
  }
  return losses;
}

template <class Torch, class Options>
std::vector<double> LossesOver(int devices, const Course& course, const Options& options) {
  std::vector<std::string> names;
  for (int device = 0; device < devices; ++device) names.push_back("CPU:" + std::to_string(device));
  MirroredStrategy strategy(names);
  return LossesUnder<Torch>(strategy, course, options);
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double distance = std::abs(a[i] - b[i]);
    most = std::isnan(distance) ? distance : std::max(most, distance);
  }
  return most;
}

template <class Torch, class Options>
void CheckEqual(const std::string& optimizer, const Options& options) {
  if (!testing::fashion::Here()) WARN("on images that are made up, not on Fashion-MNIST");
  // Where to write the figures that docs/modules.md shows.
  const char* const table = std::getenv("MUSTER_TRAINING_TABLE");
  for (const auto& [type, steps, limit] :
       {std::tuple{torch::kFloat64, 200, 1e-9}, std::tuple{torch::kFloat32, 20, 1e-5}}) {
    std::array<double, 5> most{};
    for (const std::uint64_t seed : kSeeds) {
      const Course course{seed, type, steps};
      const std::vector<double> expected = PlainLosses<Torch>(course, options);
      const double begin = std::accumulate(expected.begin(), expected.begin() + 10, 0.0);
      const double end = std::accumulate(expected.rbegin(), expected.rbegin() + 10, 0.0);
      CHECK(end < (steps == 200 ? 0.7 : 1.0) * begin);
      for (const int devices : {1, 2, 4}) {
        const double difference =
            LargestDifference(LossesOver<Torch>(devices, course, options), expected);
        CAPTURE(optimizer, seed, devices, torch::toString(type));
        CHECK(difference <= limit);
        auto& worst = most[static_cast<std::size_t>(devices)];
        worst = std::max(worst, difference);
      }
    }
    if (table != nullptr) {
      std::ofstream(table, std::ios::app)
          << "| " << optimizer << " | " << torch::toString(type) << " | " << steps << " | "
          << most[1] << " | " << most[2] << " | " << most[4] << " |\n";
    }
  }
}

TEST_CASE("sgd over 1, 2 and 4 devices has the losses of one process", "[strategy][unit]") {
  CheckEqual<torch::optim::SGD>("sgd", torch::optim::SGDOptions(0.1));
}

TEST_CASE("momentum over 1, 2 and 4 devices has the losses of one process", "[strategy][unit]") {
  CheckEqual<torch::optim::SGD>("momentum", torch::optim::SGDOptions(0.02).momentum(0.9));
}

TEST_CASE("adagrad over 1, 2 and 4 devices has the losses of one process", "[strategy][unit]") {
  CheckEqual<torch::optim::Adagrad>("adagrad", torch::optim::AdagradOptions(0.02));
}

TEST_CASE("adam over 1, 2 and 4 devices has the losses of one process", "[strategy][unit]") {
  CheckEqual<torch::optim::Adam>("adam", torch::optim::AdamOptions(2e-3));
}

TEST_CASE("on an emulated 2x2x1x2 the losses are those of one process, the same bits in each run",
          "[strategy][spec]") {
  (void)initialize_tpu_system({.topology = "2x2x1x2"});
  for (const std::uint64_t seed : {1, 2}) {
    const Course course{seed, torch::kFloat64, 200};
    const auto adam = torch::optim::AdamOptions(2e-3);
    const auto run = [&] {
      TPUStrategy strategy;
      REQUIRE(strategy.num_replicas_in_sync() == 8);
      return LossesUnder<torch::optim::Adam>(strategy, course, adam);
    };

    const std::vector<double> losses = run();

    const std::vector<double> expected = PlainLosses<torch::optim::Adam>(course, adam);
    CHECK(expected.back() < 0.7 * expected.front());
    CHECK(LargestDifference(losses, expected) <= 1e-9);
    CHECK(run() == losses);
  }
  shutdown_tpu_system();
}

}  // namespace
}  // namespace muster
