// A program on the C++ API, as a user writes one: what it is told to do is its first argument.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include "strategy/muster.h"

namespace {

muster::Dataset<torch::Tensor> squares(std::int64_t n) {
  return muster::dataset::range(n)
      .map([](const torch::Tensor& x) { return x * x; })
      .repeat()
      .batch(8);
}
double mean_of_next(muster::WorkerIterator<torch::Tensor>& data) {
  return data.get_next().to(torch::kFloat64).mean().item<double>();
}
// What every process has one of. MODEL_BROKEN in the environment: it cannot be made.
struct Model {
  torch::Tensor weight;
  int calls = 0;
};
std::unique_ptr<Model> make_model() {
  if (std::getenv("MODEL_BROKEN") != nullptr) {
    muster::raise(muster::ErrorCode::kFailedPrecondition, "no weights here");
  }
  return std::make_unique<Model>(Model{.weight = torch::full({3}, 2.0), .calls = 0});
}
double weighted(Model& model, const torch::Tensor& batch) {
  ++model.calls;
  return (model.weight * batch).sum().item<double>();
}
int calls(Model& model) { return model.calls; }
std::int64_t same(std::int64_t x) { return x; }
// One more line in a file for every execution.
std::int64_t counted(std::int64_t x, const std::string& file) {
  std::ofstream(file, std::ios::app) << x << "\n" << std::flush;
  ::usleep(10'000);
  return x;
}
torch::Tensor product(const torch::Tensor& a, const torch::Tensor& b) { return torch::mm(a, b); }
int own_index() { return muster::worker_index(); }
// What this process was told of its cluster.
std::string visible() {
  const char* const config = std::getenv("TF_CONFIG");
  return config == nullptr ? "nothing" : config;
}
int own_pid() { return ::getpid(); }
// More and more, until there is no more.
std::int64_t fill(bool tensors) {
  std::vector<torch::Tensor> kept;
  std::vector<std::string> texts;
  for (std::int64_t n = 0; n < 1'000'000; ++n) {
    if (tensors) {
      kept.push_back(torch::ones({16 << 20}, torch::kUInt8));
    } else {
      texts.emplace_back(16 << 20, 'x');
    }
  }
  return static_cast<std::int64_t>(kept.size() + texts.size());
}
void loops(bool for_ever) {
  while (for_ever) ::usleep(1'000);
}
void fails() { muster::raise(muster::ErrorCode::kOutOfRange, "the closure's own trouble"); }

}  // namespace

MUSTER_PROGRAM(make_model);
MUSTER_FUNCTION(weighted);
MUSTER_FUNCTION(calls);
MUSTER_FUNCTION(squares);
MUSTER_FUNCTION(mean_of_next);
MUSTER_FUNCTION(same);
MUSTER_FUNCTION(counted);
MUSTER_FUNCTION(product);
MUSTER_FUNCTION(own_index);
MUSTER_FUNCTION(own_pid);
MUSTER_FUNCTION(visible);
MUSTER_FUNCTION(fill);
MUSTER_FUNCTION(loops);
MUSTER_FUNCTION(fails);

namespace {

int train(muster::ClusterCoordinator& coordinator, int steps) {
  const auto data = coordinator.create_per_worker_dataset<squares>(8).iterator();
  std::vector<muster::RemoteValue<double>> means;
  for (int i = 0; i < steps; ++i) means.push_back(coordinator.schedule<mean_of_next>(data));
  coordinator.join();
  double sum = 0;
  for (const double mean : coordinator.fetch(means)) sum += mean;
  std::printf("mean %.1f\n", sum / steps);
  const auto eye = coordinator.schedule<product>(torch::eye(3), torch::ones({3, 3}));
  std::printf("product %.0f\n",
              coordinator.schedule<product>(eye, eye).fetch().sum().item<double>());
  return 0;
}

int count(muster::ClusterCoordinator& coordinator, int n, const std::string& file) {
  std::vector<muster::RemoteValue<std::int64_t>> values;
  for (int i = 1; i <= n; ++i) values.push_back(coordinator.schedule<counted>(i, file));
  muster::report("all are scheduled");
  std::printf("scheduled %d\n", n);
  coordinator.join();
  std::int64_t sum = 0;
  for (const std::int64_t value : coordinator.fetch(values)) sum += value;
  std::printf("sum %ld\n", static_cast<long>(sum));
  return 0;
}

// Prints what becomes of functions that take all memory, and that the executor goes on.
int fill_all(muster::ClusterCoordinator& coordinator) {
  const auto pids = coordinator.create_per_worker_resource<own_pid>().fetch();
  for (const bool tensors : {false, true}) {
    coordinator.schedule<fill>(tensors);
    try {
      coordinator.join();
    } catch (const muster::ClosureError& error) {
      std::printf("caught %s\n", to_string(error.code()).c_str());
    }
  }
  // A worker may have come meanwhile; those that were there are there still.
  const auto now = coordinator.create_per_worker_resource<own_pid>().fetch();
  const bool same = std::ranges::all_of(
      pids, [&](const auto pid) { return std::ranges::find(now, pid) != now.end(); });
  std::printf("executors %s\n", same ? "stay" : "are others");
  return 0;
}

// Prints what becomes of a function that never ends under a deadline, and that others run after it.
int endless(muster::ClusterCoordinator& coordinator) {
  for (const int wrong : {0, -1}) {
    try {
      (void)coordinator.within(std::chrono::milliseconds(wrong));
    } catch (const muster::Error& error) {
      std::printf("refused %d: %s\n", wrong, to_string(error.code()).c_str());
    }
  }
  coordinator.within(std::chrono::minutes(10)).schedule<loops>(false);
  coordinator.join();
  coordinator.within(std::chrono::milliseconds(50)).schedule<loops>(true);
  try {
    coordinator.join();
  } catch (const muster::ClosureError& error) {
    std::printf("caught %s of %s: %s\n", to_string(error.code()).c_str(),
                error.details().task.c_str(), error.text().c_str());
  }
  std::printf("again %ld\n", static_cast<long>(coordinator.schedule<same>(7).fetch()));
  return 0;
}

// Prints what becomes of a value of worker:1, which is gone when worker:2 is there.
int outlive(muster::ClusterCoordinator& coordinator) {
  const auto pids = coordinator.create_per_worker_resource<own_pid>();
  while (pids.fetch().size() < 2) ::usleep(1'000);
  std::printf("made\n");
  const std::string last = "worker:2";
  while (std::ranges::count(coordinator.workers(), last) == 0) ::usleep(1'000);
  for (const muster::PerWorkerState& state : pids.states()) {
    if (state.kind == muster::PerWorkerState::Kind::kAborted) {
      std::printf("%s has lost its value\n", state.task.c_str());
    }
  }
  try {
    std::printf("%zu values\n", pids.fetch().size());
  } catch (const muster::ClosureAbortedError& error) {
    std::printf("caught the loss of %s\n", error.details().task.c_str());
  }
  return 0;
}

int fail(muster::ClusterCoordinator& coordinator) {
  coordinator.schedule<fails>();
  try {
    coordinator.join();
  } catch (const muster::ClosureError& error) {
    std::printf("caught %s of %s\n", to_string(error.code()).c_str(), error.details().task.c_str());
  }
  std::printf("again %ld\n", static_cast<long>(coordinator.schedule<same>(7).fetch()));
  coordinator.join();
  // Not caught: the job's error.
  coordinator.schedule<fails>();
  coordinator.join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  muster::init(argc, argv);
  const std::string mode = argc > 1 ? argv[1] : "train";
  muster::ClusterCoordinator coordinator;
  if (mode == "train") return train(coordinator, argc > 2 ? std::stoi(argv[2]) : 20);
  if (mode == "count" && argc > 3) return count(coordinator, std::stoi(argv[2]), argv[3]);
  if (mode == "fail") return fail(coordinator);
  if (mode == "outlive") return outlive(coordinator);
  if (mode == "endless") return endless(coordinator);
  if (mode == "fill") return fill_all(coordinator);
  if (mode == "object") {
    double sum = 0;
    for (int i = 0; i < 10; ++i) sum += coordinator.schedule<weighted>(torch::ones(3)).fetch();
    std::printf("weighted %.0f after %d calls, own %d\n", sum,
                coordinator.schedule<calls>().fetch(), muster::program_object<Model>().calls);
    return 0;
  }
  if (mode == "indices") {
    for (const int index : coordinator.create_per_worker_resource<own_index>().fetch()) {
      std::printf("worker %d\n", index);
    }
    return 0;
  }
  if (mode == "visible") {
    const auto told = coordinator.create_per_worker_resource<visible>();
    while (told.fetch().size() < 2) ::usleep(1'000);
    for (const std::string& seen : told.fetch()) std::printf("sees %s\n", seen.c_str());
    return 0;
  }
  if (mode == "second") {
    muster::ClusterCoordinator second;
    std::printf("same %d\n", second == coordinator ? 1 : 0);
    return 0;
  }
  throw std::invalid_argument("no mode " + mode);
}
