// Workers that do one thing of a step again and again, as tests start them under TF_CONFIG: what
// befalls a worker befalls it in the midst of that.
//
//   multi_worker_phases <folder> <call within, ms> <phase> [<another phase> <task>]
//
// The task that is named does the other phase instead; "leave": ends well in the midst, with 0. The
// folder is for checkpoints. Errors are printed; the exit code is 3.
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include <unistd.h>

#include "strategy/muster.h"

namespace {

using muster::replica_context;

constexpr std::int64_t kLarge = std::int64_t{4} << 20;

// What is done again and again.
std::function<void()> once(muster::MultiWorkerMirroredStrategy& strategy, const std::string& phase,
                           const std::string& folder) {
  const auto in_replica = [&strategy](const std::function<void()>& work) {
    return [&strategy, work] { strategy.run(work); };
  };
  if (phase == "compute") {
    const torch::Tensor square = torch::rand({700, 700});
    return in_replica([square] {
      torch::Tensor product = square;
      for (int i = 0; i < 5; ++i) product = torch::mm(product, square);
      replica_context().all_reduce(muster::ReduceOp::kSum, torch::ones({1}));
    });
  }
  if (phase == "reduce") {
    return in_replica(
        [] { replica_context().all_reduce(muster::ReduceOp::kSum, torch::ones({kLarge})); });
  }
  if (phase == "started") {
    return in_replica([] {
      // Two are on their way while this computes.
      auto& here = replica_context();
      const auto first = here.start_all_reduce(muster::ReduceOp::kSum, torch::ones({kLarge}));
      const auto second = here.start_all_reduce(muster::ReduceOp::kSum, torch::ones({kLarge}));
      (void)torch::mm(torch::ones({300, 300}), torch::ones({300, 300}));
      (void)first.wait();
      (void)second.wait();
    });
  }
  if (phase == "backward") {
    torch::nn::Sequential layers;
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(512, 512));
    const auto net = strategy.distribute(layers);
    const auto optimizer = strategy.optimizer<torch::optim::SGD>(
        net, torch::optim::SGDOptions(1e-4), {.reduce_in_backward = true, .bytes_per_pack = 1});
    return in_replica([net, optimizer, batch = torch::ones({64, 512})] {
      optimizer.zero_grad();
      net->forward(batch).square().mean().backward();
      optimizer.step();
    });
  }
  if (phase == "gather") {
    return in_replica([] { replica_context().all_gather(torch::ones({kLarge / 4}), 0); });
  }
  if (phase == "broadcast") {
    return [value = torch::ones({kLarge})] { (void)muster::Variable::create("w", value); };
  }
  if (phase == "input") {
    const auto data = muster::experimental_distribute_dataset(
        strategy, muster::dataset::range(std::int64_t{1} << 40).batch(8));
    const auto iterator = std::make_shared<decltype(data.iterator())>(data.iterator());
    return [iterator] { (void)iterator->get_next(); };
  }
  if (phase == "metric") {
    const muster::Mean mean("loss");
    return [&strategy, mean] {
      strategy.run([&] { mean.update(1.0); });
      (void)mean.result();
    };
  }
  if (phase == "checkpoint") {
    const auto w = muster::Variable::create("w", torch::ones({kLarge}));
    const muster::CheckpointManager manager(muster::Checkpoint({{"w", w}}), folder, 1);
    return [manager, step = std::uint64_t{0}]() mutable { (void)manager.save(++step); };
  }
  if (phase == "absent") {
    return [] { (void)::pause(); };
  }
  std::cout << "no phase " << phase << std::endl;
  std::exit(2);
}

void work(const std::string& folder, int within_ms, std::string phase, const std::string& other,
          const std::string& who) {
  muster::MultiWorkerMirroredStrategy strategy(
      muster::MultiWorkerMirroredOptions{.call_within = std::chrono::milliseconds(within_ms)});
  const auto scope = strategy.scope();
  const bool me = strategy.task_type() + ":" + std::to_string(strategy.task_id()) == who;
  const bool leaves = me && other == "leave";
  if (me && !leaves) phase = other;
  const std::function<void()> step = once(strategy, phase, folder);
  for (int i = 0;; ++i) {
    if (i == 3) std::cout << "within " << phase << std::endl;
    if (i == 5 && leaves) return;
    step();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 6) return 2;
  try {
    work(argv[1], std::atoi(argv[2]), argv[3], argc == 6 ? argv[4] : "", argc == 6 ? argv[5] : "");
  } catch (const muster::Error& error) {
    std::cout << "error " << error.what() << std::endl;
    return 3;
  }
}
