// muster-backward-bench: what a data-parallel step costs beside its computing, and how much of that
// reduce_in_backward hides. A program of a multi_worker_mirrored job: it runs on each worker, by
// TF_CONFIG or `muster submit`, over the network that is to be measured; the chief prints.
// `muster-bench backward` executes it.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "strategy/muster.h"

namespace muster::bench {
namespace {

// Steps: in the first one early sums learn, and in the second who steps next.
constexpr int kWarmUp = 2;
constexpr int kSteps = 6;  // of one kind before those of the next
constexpr std::int64_t kWidth = 1024;
constexpr int kLayers = 6;  // 25 MB of float32
constexpr std::int64_t kBatch = 256;

// One way to make a step: a net and an optimizer of its own.
class Way {
 public:
  Way(MultiWorkerMirroredStrategy& strategy, const OptimizerOptions& how)
      : strategy_(strategy),
        net_(strategy.distribute(Layers())),
        optimizer_(
            strategy.optimizer<torch::optim::SGD>(net_, torch::optim::SGDOptions(1e-4), how)),
        batch_(torch::randn({kBatch, kWidth})) {}

  // All workers at once, so that none waits for another's work before this. Seconds.
  double Step() {
    (void)strategy_.reduce(ReduceOp::kSum, torch::zeros({1}));
    const auto begin = std::chrono::steady_clock::now();
    strategy_.run([this] {
      optimizer_.zero_grad();
      net_->forward(batch_).square().mean().backward();
      optimizer_.step();
    });
    return SecondsSince(begin);
  }

 private:
  static torch::nn::Sequential Layers() {
    torch::nn::Sequential layers;
    for (int i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    return layers;
  }

  MultiWorkerMirroredStrategy& strategy_;
  DistributedModule<torch::nn::SequentialImpl> net_;
  DistributedOptimizer<torch::optim::SGD> optimizer_;
  const torch::Tensor batch_;
};

void Run() {
  MultiWorkerMirroredStrategy strategy;
  const auto scope = strategy.scope();
  Way alone(strategy, {.all_reduce_gradients = false});
  Way at_the_step(strategy, {});
  Way in_backward(strategy, {.reduce_in_backward = true});
  std::vector<double> computing;
  std::vector<double> late;
  std::vector<double> early;
  for (int round = 0; round < kRounds; ++round) {
    const auto measure = [&](Way& way, std::vector<double>& seconds) {
      for (int step = 0; step < kSteps; ++step) {
        const double took = way.Step();
        if (step >= kWarmUp) seconds.push_back(took);
      }
    };
    measure(alone, computing);
    measure(at_the_step, late);
    measure(in_backward, early);
  }
  if (!strategy.is_chief()) return;
  const double computes = SpreadOf(computing).median;
  const double with_late = SpreadOf(late).median;
  const double with_early = SpreadOf(early).median;
  std::printf(
      "{\"workers\": %d, \"gradient_bytes\": %lld, \"step_ms\": {\"without_sums\": %.2f, "
      "\"sums_at_the_step\": %.2f, \"sums_in_backward\": %.2f}, \"added_ms\": "
      "{\"sums_at_the_step\": %.2f, \"sums_in_backward\": %.2f}, \"ratio\": %.3f}\n",
      strategy.num_workers(), static_cast<long long>(kLayers * (kWidth * kWidth + kWidth) * 4),
      computes * 1e3, with_late * 1e3, with_early * 1e3, (with_late - computes) * 1e3,
      (with_early - computes) * 1e3, with_early / with_late);
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char**) {
  if (argc != 1) {
    std::fputs("usage: muster-backward-bench, on each worker of TF_CONFIG\n", stderr);
    return 2;
  }
  try {
    muster::bench::Run();
  } catch (const muster::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return muster::bench::Told(0);
}
