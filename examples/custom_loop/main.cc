// Trains an MLP on Fashion-MNIST by a loop of its own, under the strategy that the first argument
// names:
//
//   custom_loop [one_device|mirrored|central_storage|multi_worker_mirrored] [<folder of the data>]
//
// As multi_worker_mirrored it is one of the workers of TF_CONFIG; without that, the only one.
//
// Exit code: 0 when at least 88 % of the 10,000 held-out images are recognised, else 1; 2 for
// wrong usage and for errors.
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <string>
#include <tuple>
#include <vector>

#include <muster/muster.h>

namespace {

constexpr int kEpochs = 5;
constexpr std::int64_t kGlobalBatch = 128;
constexpr double kLeastAccuracy = 0.88;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(784, 256));
    out = register_module("out", torch::nn::Linear(256, 10));
  }
  // uint8 [batch, 28, 28] -> logits [batch, 10]
  torch::Tensor forward(const torch::Tensor& images) {
    const auto pixels = (images.flatten(1).to(torch::kFloat) / 255.0 - 0.286) / 0.353;
    return out(torch::relu(hidden(pixels)));
  }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(Net);

using Batch = std::tuple<torch::Tensor, torch::Tensor>;

muster::Dataset<Batch> read(const std::string& folder, const std::string& part) {
  return muster::dataset::idx(folder + "/" + part + "-images-idx3-ubyte.gz",
                              folder + "/" + part + "-labels-idx1-ubyte.gz");
}

std::unique_ptr<muster::Strategy> make_strategy(const std::string& name) {
  if (name == "one_device") return std::make_unique<muster::OneDeviceStrategy>("CPU:0");
  const std::vector<std::string> devices = {"CPU:0", "CPU:1"};
  if (name == "mirrored") return std::make_unique<muster::MirroredStrategy>(devices);
  if (name == "central_storage") return std::make_unique<muster::CentralStorageStrategy>(devices);
  if (name == "multi_worker_mirrored") {
    return std::make_unique<muster::MultiWorkerMirroredStrategy>();
  }
  return nullptr;
}

// The share of the held-out images that is recognised.
double train(muster::Strategy& strategy, const std::string& folder) {
  namespace F = torch::nn::functional;
  const auto scope = strategy.scope();
  torch::manual_seed(1);
  const auto net = strategy.distribute(Net());
  const auto optimizer =
      strategy.optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(1e-3));
  const muster::Mean loss("loss");
  const muster::Accuracy accuracy("accuracy");

  const auto images = muster::experimental_distribute_dataset(
      strategy, read(folder, "train").shuffle(60'000, /*seed=*/1).batch(kGlobalBatch).prefetch(2));
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    net->train();
    // Half a cosine, from twice Adam's usual rate down.
    optimizer.set_learning_rate(1e-3 * (1 + std::cos(std::numbers::pi * (epoch - 1) / kEpochs)));
    for (const auto& batch : images) {
      strategy.run(
          [&](const Batch& piece) {
            const auto& [x, y] = piece;
            optimizer.zero_grad();
            const auto losses =
                F::cross_entropy(net->forward(x), y.to(torch::kLong),
                                 F::CrossEntropyFuncOptions().reduction(torch::kNone));
            muster::compute_average_loss(losses, kGlobalBatch).backward();
            optimizer.step();  // with the gradients of all replicas
            loss.update(losses.detach());
          },
          batch);
    }
    std::printf("epoch %d: loss %.4f\n", epoch, loss.result());
    loss.reset();
  }

  net->eval();
  const torch::NoGradGuard no_grad;
  for (const auto& batch :
       muster::experimental_distribute_dataset(strategy, read(folder, "t10k").batch(1000))) {
    strategy.run(
        [&](const Batch& piece) {
          const auto& [x, y] = piece;
          accuracy.update(net->forward(x), y);
        },
        batch);
  }
  return accuracy.result();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "mirrored";
  const std::string folder = argc > 2 ? argv[2] : "/usr/share/datasets/fashion-mnist";
  try {
    const auto strategy = make_strategy(name);
    if (strategy == nullptr) {
      std::fprintf(stderr,
                   "custom_loop: strategy %s: one_device, mirrored, central_storage or "
                   "multi_worker_mirrored\n",
                   name.c_str());
      return 2;
    }
    const double accuracy = train(*strategy, folder);
    std::printf("%s: accuracy %.4f\n", name.c_str(), accuracy);
    return accuracy >= kLeastAccuracy ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "custom_loop: %s\n", error.what());
    return 2;
  }
}
