// Looks for good settings of a small network on Fashion-MNIST: each trial is a closure that trains
// it with settings of its own, on whichever worker is free. Kill workers while it runs: their
// trials run again elsewhere.
//
//   muster submit --follow -- search [<trials>] [<folder of the data>]
//
// Prints every trial and the best one. Exit code: 0 when the best recognises at least 80 % of the
// 10,000 held-out images, else 1.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <muster/muster.h>

namespace {

constexpr double kLeastAccuracy = 0.80;
constexpr std::int64_t kTrainedOn = 20'000;
constexpr std::int64_t kBatch = 100;

using Batch = std::tuple<torch::Tensor, torch::Tensor>;

muster::Dataset<Batch> read(const std::string& folder, const std::string& part) {
  return muster::dataset::idx(folder + "/" + part + "-images-idx3-ubyte.gz",
                              folder + "/" + part + "-labels-idx1-ubyte.gz");
}

torch::Tensor pixels(const torch::Tensor& images) {
  return (images.flatten(1).to(torch::kFloat) / 255.0 - 0.286) / 0.353;
}

}  // namespace

// What travels to workers and back is copied as it is.
struct Settings {
  std::int64_t hidden = 0;
  double learning_rate = 0;
  double momentum = 0;
};

// Runs on a worker: one pass over the first images. The share of the held-out images that is
// recognised then.
double train(const Settings& settings, const std::string& folder) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(784, settings.hidden), torch::nn::ReLU(),
                            torch::nn::Linear(settings.hidden, 10));
  torch::optim::SGD optimizer(
      net->parameters(),
      torch::optim::SGDOptions(settings.learning_rate).momentum(settings.momentum));
  for (const auto& [x, y] : read(folder, "train").take(kTrainedOn).batch(kBatch)) {
    muster::throw_if_cancelled();
    optimizer.zero_grad();
    torch::cross_entropy_loss(net->forward(pixels(x)), y.to(torch::kLong)).backward();
    optimizer.step();
  }

  const torch::NoGradGuard no_grad;
  std::int64_t right = 0;
  std::int64_t all = 0;
  for (const auto& [x, y] : read(folder, "t10k").batch(1'000)) {
    right += net->forward(pixels(x)).argmax(1).eq(y.to(torch::kLong)).sum().item<std::int64_t>();
    all += y.size(0);
  }
  return static_cast<double>(right) / static_cast<double>(all);
}
MUSTER_FUNCTION(train);

int main(int argc, char** argv) {
  muster::init(argc, argv);
  const int trials = argc > 1 ? std::atoi(argv[1]) : 12;
  const std::string folder = argc > 2 ? argv[2] : "/usr/share/datasets/fashion-mnist";

  if (trials < 1) {
    std::fprintf(stderr, "search: %s trials: at least 1 is needed\n", argv[1]);
    return 2;
  }

  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-3, 0);
  std::vector<Settings> settings;
  for (int trial = 0; trial < trials; ++trial) {
    settings.push_back({.hidden = std::int64_t{32} << (random() % 4),
                        .learning_rate = std::pow(10, exponent(random)),
                        .momentum = random() % 2 == 0 ? 0.0 : 0.9});
  }

  muster::ClusterCoordinator coordinator;
  std::vector<muster::RemoteValue<double>> results;
  for (const Settings& one : settings) results.push_back(coordinator.schedule<train>(one, folder));

  double best = 0;
  Settings chosen;
  for (std::size_t trial = 0; trial < results.size(); ++trial) {
    const double accuracy = results[trial].fetch();
    const Settings& one = settings[trial];
    std::printf("trial %2zu: %3d hidden, learning rate %.4f, momentum %.1f: accuracy %.4f\n",
                trial + 1, static_cast<int>(one.hidden), one.learning_rate, one.momentum, accuracy);
    if (accuracy < best) continue;
    best = accuracy;
    chosen = one;
  }
  std::printf("best: %d hidden, learning rate %.4f, momentum %.1f: accuracy %.4f\n",
              static_cast<int>(chosen.hidden), chosen.learning_rate, chosen.momentum, best);
  return best >= kLeastAccuracy ? 0 : 1;
}
