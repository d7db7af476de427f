// A program that is killed in all its parts and still ends as it should: it saves what it has, and
// a main() that begins anew goes on from there.
//
//   survivor DIR N [closures | evaluator]
//                      N closures that add 1 to a variable, and a checkpoint in DIR after each 20;
//                      then each of 1..N is evaluated once, in closures. Prints "trains",
//                      "evaluates", and "counted N, evaluated S"
//
// Its evaluator reports the variable of each checkpoint, and takes its time. What the third
// argument names is held half way until the file DIR/go is there.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include "strategy/muster.h"

namespace {

constexpr int kEach = 20;

struct Model {
  muster::ParameterServerStrategy strategy;
  muster::Variable counter;
  Model() {
    const auto scope = strategy.scope();
    counter = muster::Variable::create("counter", 0);
  }
};
std::unique_ptr<Model> make_model() { return std::make_unique<Model>(); }

void count(Model& model) {
  model.counter += 1;
  ::usleep(2'000);
}
muster::Dataset<torch::Tensor> examples(std::int64_t n) {
  return muster::dataset::range(1, n + 1).batch(2);
}
// An empty path: nothing holds it.
void wait_for(const std::string& path) {
  for (int tries = 0; !path.empty() && !std::filesystem::exists(path); ++tries) {
    if (tries == 24'000) throw std::runtime_error("there is no " + path + " after 120 s");
    ::usleep(5'000);
  }
}
std::int64_t sum_of_next(muster::WorkerIterator<torch::Tensor>& data, const std::string& held_by) {
  const auto batch = data.next();
  wait_for(held_by);
  ::usleep(5'000);
  return batch ? batch->sum().item<std::int64_t>() : 0;
}

}  // namespace

MUSTER_PROGRAM(make_model);
MUSTER_FUNCTION(count);
MUSTER_FUNCTION(examples);
MUSTER_FUNCTION(sum_of_next);

namespace {

void evaluate(const std::string& folder, const std::string& held_by) {
  const muster::Variable counter = muster::Variable::create("counter", 0);
  muster::Checkpoint checkpoint({{"counter", counter}});
  const muster::CheckpointManager manager(checkpoint, folder, 100);
  muster::evaluate_checkpoints([&] { return manager.checkpoints(); },
                               [&](const std::string& path) {
                                 checkpoint.restore(path);
                                 const int count = counter.item<int>();
                                 if (count > 5 * kEach) wait_for(held_by);
                                 ::usleep(100'000);
                                 return muster::Evaluation{{"counter", count}};
                               });
}

// The sum of all examples, each of which counts once.
std::int64_t evaluate_inline(muster::ClusterCoordinator& coordinator, int n,
                             const std::string& held_by) {
  const auto pass = coordinator.create_per_worker_dataset<examples>(std::int64_t{n})
                        .iterator({.input = muster::InputGuarantee::kExactlyOnce});
  std::vector<muster::RemoteValue<std::int64_t>> sums;
  for (int i = 0; i < n; i += 2) {
    const bool held = i >= n / 2;
    sums.push_back(coordinator.schedule<sum_of_next>(pass, held ? held_by : std::string()));
  }
  std::printf("evaluates\n");
  std::int64_t all = 0;
  for (const std::int64_t sum : coordinator.fetch(sums)) all += sum;
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  muster::init(argc, argv);
  const std::string folder = argc > 1 ? argv[1] : ".";
  const int n = argc > 2 ? std::atoi(argv[2]) : 100;
  const std::string held = argc > 3 ? argv[3] : "";
  const std::string go = folder + "/go";
  if (muster::is_evaluator()) {
    evaluate(folder, held == "evaluator" ? go : "");
    return 0;
  }
  const Model& model = muster::program_object<Model>();
  muster::ClusterCoordinator coordinator;
  muster::Checkpoint checkpoint({{"counter", model.counter}});
  muster::CheckpointManager manager(checkpoint, folder, 100);
  (void)manager.restore_latest();
  for (int done = model.counter.item<int>(); done < n;) {
    if (muster::stop_requested().stop_requested()) return 0;
    for (int i = 0; i < kEach; ++i) coordinator.schedule<count>();
    coordinator.join();
    done += kEach;
    manager.save(static_cast<std::uint64_t>(done));
    if (done == 2 * kEach) std::printf("trains\n");
  }
  const std::int64_t evaluated = evaluate_inline(coordinator, n, held == "closures" ? go : "");
  std::printf("counted %d, evaluated %ld\n", model.counter.item<int>(),
              static_cast<long>(evaluated));
  return 0;
}
