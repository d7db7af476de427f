// Training that is asked to end, as tests/unit/strategy/multi_worker_mirrored starts it: each call
// of run() adds 1 on every worker to one variable.
//
//   preemption <folder> <calls> [grace=<ms>] [save] [fail=<call>] [slow=<ms>] [own] [stay]
//
// save: a save function of its own, which writes <folder>/mine-<worker>. fail: worker:1 throws in
// that call. own: each worker names a folder of its own, <folder>/<worker>. stay: when all is
// saved training goes on.
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "strategy/muster.h"

namespace {

struct Options {
  std::string folder;
  std::uint64_t calls = 0;
  std::chrono::milliseconds grace{0};
  std::chrono::milliseconds slow{0};
  std::uint64_t fail = 0;
  bool save = false;
  bool own = false;
  bool stay = false;
};

Options options_of(const std::vector<std::string>& arguments) {
  Options options{.folder = arguments.at(0), .calls = std::stoull(arguments.at(1))};
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const std::string value = word.substr(word.find('=') + 1);
    if (word.starts_with("grace=")) options.grace = std::chrono::milliseconds(std::stoi(value));
    if (word.starts_with("slow=")) options.slow = std::chrono::milliseconds(std::stoi(value));
    if (word.starts_with("fail=")) options.fail = std::stoull(value);
    if (word == "save") options.save = true;
    if (word == "own") options.own = true;
    if (word == "stay") options.stay = true;
  }
  return options;
}

void train(const Options& options) {
  muster::MultiWorkerMirroredStrategy strategy;
  const auto scope = strategy.scope();
  const std::string id = std::to_string(strategy.task_id());
  const muster::Variable count = muster::Variable::create(
      "count", torch::zeros({}, torch::kFloat64),
      {.trainable = false, .aggregation = muster::VariableAggregation::kSum});
  muster::Checkpoint checkpoint;
  checkpoint.track("count", count);
  muster::TerminationConfig config{.grace_period = options.grace};
  if (options.save) {
    config.save = [&] { std::ofstream(options.folder + "/mine-" + id) << "saved\n"; };
  }
  const muster::PreemptionCheckpointHandler* made = nullptr;
  if (options.stay) {
    config.exit = [&] { std::cout << "stays at " << made->total_run_calls() << std::endl; };
  }
  muster::PreemptionCheckpointHandler handler(
      strategy, checkpoint, options.own ? options.folder + "/" + id : options.folder, config);
  made = &handler;
  std::cout << "begins after " << handler.total_run_calls() << std::endl;
  while (handler.total_run_calls() < options.calls) {
    handler.run([&] {
      if (handler.total_run_calls() + 1 == options.fail && strategy.task_id() == 1) {
        throw std::runtime_error("the data has a hole");
      }
      std::this_thread::sleep_for(options.slow);
      strategy.run([&] { count.assign_add(torch::ones({}, torch::kFloat64), false); });
    });
    std::cout << "call " << handler.total_run_calls() << std::endl;
  }
  std::cout << "count " << count.value().item<double>() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(options_of({argv + 1, argv + argc}));
  } catch (const std::exception& error) {
    std::cout << "error " << error.what() << std::endl;
    return 3;
  }
  return 0;
}
