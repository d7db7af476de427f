// A program whose workers may come and go, as tests/unit/strategy/multi_worker_mirrored starts it:
// trains a network under TF_CONFIG and prints each step that counts with its loss, bit for bit, and
// at the end what has become of the network.
//
//   elastic <steps> [<task> <step> <signal> <phase>] [options...]
//
// The task that is named sends itself the signal (-1: it ends its group by a DATA_LOSS, as a
// checksum that fails does; -2: it reduces what has no sum, which throws) at that step: begin,
// shard (some of its gradients are computed), summed (all have them), applied (its update is done),
// committed. Options: adam; slow (a step takes 20 ms); alone=<ms> (the first group waits so long
// for all); first=<n> (a worker alone begins with worker n's values); marks=<folder> (see Marks);
// save=<folder> (goes on from the last checkpoint there, and saves one every=<n> steps); meanwhile
// (beside the next steps); own (the network has running statistics, and replicas count what they
// see); stay=<file> (after the last step it waits until the file is there).
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/group.h"
#include "common/base/status.h"
#include "strategy/muster.h"
#include "strategy/train/internal/saved_state.h"

namespace {

constexpr std::int64_t kRows = 16;  // of a shard

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  explicit NetImpl(bool has_own) : own(has_own) { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(12, 24));
    if (own) norm = register_module("norm", torch::nn::BatchNorm1d(24));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    last = register_module("last", torch::nn::Linear(24, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor wide = own ? norm->forward(hidden->forward(x)) : hidden->forward(x);
    return last->forward(dropout->forward(torch::tanh(wide)));
  }
  bool own;
  torch::nn::Linear hidden = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Dropout dropout = nullptr;
  torch::nn::Linear last = nullptr;
};
TORCH_MODULE(Net);

struct Options {
  std::uint64_t steps = 0;
  std::string who;
  std::uint64_t when = 0;
  int signal = 0;
  std::string phase;
  bool adam = false;
  bool slow = false;
  std::chrono::milliseconds alone{60'000};
  int first = 0;
  std::string marks;
  std::string save;
  std::uint64_t every = 20;
  bool meanwhile = false;
  bool own = false;
  std::string stay;
};

Options options_of(const std::vector<std::string>& arguments) {
  Options options;
  options.steps = std::stoull(arguments.at(0));
  std::size_t next = 1;
  if (arguments.size() > 4 && arguments[1].find(':') != std::string::npos) {
    options.who = arguments[1];
    options.when = std::stoull(arguments[2]);
    options.signal = std::stoi(arguments[3]);
    options.phase = arguments[4];
    next = 5;
  }
  for (; next < arguments.size(); ++next) {
    if (arguments[next] == "adam") options.adam = true;
    if (arguments[next] == "slow") options.slow = true;
    if (arguments[next].starts_with("alone=")) {
      options.alone = std::chrono::milliseconds(std::stoi(arguments[next].substr(6)));
    }
    if (arguments[next].starts_with("first=")) options.first = std::stoi(arguments[next].substr(6));
    if (arguments[next].starts_with("marks=")) options.marks = arguments[next].substr(6);
    if (arguments[next].starts_with("save=")) options.save = arguments[next].substr(5);
    if (arguments[next] == "own") options.own = true;
    if (arguments[next].starts_with("stay=")) options.stay = arguments[next].substr(5);
    if (arguments[next].starts_with("every="))
      options.every = std::stoull(arguments[next].substr(6));
    if (arguments[next] == "meanwhile") options.meanwhile = true;
  }
  return options;
}

// A part of the state, between the variables and the optimizer, that holds nothing, and is where a
// worker sends itself the signal that the file <folder>/<task>.<phase> says, once: given (it gives
// or gets the state, and the variables have gone), kept (it remembers the values that it has).
class Marks final : public muster::internal::SavedState {
 public:
  Marks(std::string folder, std::string task) : folder_(std::move(folder) + "/" + task) {}

  std::vector<std::string> Names() const override { return {"mark"}; }
  std::map<std::string, torch::Tensor> Values() const override {
    Reached("given");
    return {};
  }
  void ValuesInto(std::map<std::string, torch::Tensor>& kept) const override {
    Reached("kept");
    kept.clear();
  }
  void Check(const std::map<std::string, torch::Tensor>&) const override {}
  void Restore(const std::map<std::string, torch::Tensor>&) const override {}

 private:
  void Reached(const std::string& phase) const {
    const std::string path = folder_ + "." + phase;
    int signal = 0;
    std::ifstream(path) >> signal;
    if (signal == 0 || std::remove(path.c_str()) != 0) return;
    std::cout << "signal " << signal << std::endl;
    std::raise(signal);
  }

  const std::string folder_;
};
// As checkpoints track it.
struct Marked {
  std::shared_ptr<const muster::internal::SavedState> marks;
  auto saved_state() const { return marks; }
};

// The rows of a shard are a function of step and shard alone.
torch::Tensor loss_of(const muster::DistributedModule<NetImpl>& net, std::uint64_t step, int shard,
                      int shards) {
  const auto first = static_cast<double>(step * 131 + static_cast<std::uint64_t>(shard) * 17);
  const torch::Tensor x = torch::sin(torch::arange(kRows * 12, torch::kFloat64) * 0.7 + first)
                              .to(torch::kFloat32)
                              .reshape({kRows, 12});
  const torch::Tensor y = x.narrow(1, 0, 4).argmax(1);
  return torch::nn::functional::cross_entropy(net->forward(x), y) / shards;
}

// What replicas keep for themselves (ON_READ).
struct Own {
  static muster::Variable of(const std::string& name, const muster::InitialValue& value,
                             muster::VariableAggregation aggregation) {
    return muster::Variable::create(
        name, value,
        {.synchronization = muster::VariableSynchronization::kOnRead, .aggregation = aggregation});
  }
  muster::Variable rows = of("rows", std::int64_t{0}, muster::VariableAggregation::kSum);
  muster::Variable mean = of("mean", 0.0, muster::VariableAggregation::kMean);
  muster::Variable first = of("first", 0.0, muster::VariableAggregation::kOnlyFirstReplica);
  muster::Variable steps = of("steps", std::int64_t{0}, muster::VariableAggregation::kSum);

  void see(const torch::Tensor& loss, int shard) const {
    rows.assign_add(kRows + shard);
    mean.assign(mean.value() * 0.9 + loss.detach() * 0.1);
    first.assign(loss.detach());
  }
};

void print(const std::string& name, const torch::Tensor& of) {
  const torch::Tensor value = of.detach().to(torch::kFloat64);
  std::cout << "parameter " << name << " " << std::hexfloat << value.sum().item<double>() << " "
            << value.abs().sum().item<double>() << " " << (value * value).sum().item<double>()
            << std::defaultfloat << std::endl;
}

template <class Optimizer>
void train(muster::MultiWorkerMirroredStrategy& strategy, const Options& options,
           const muster::DistributedModule<NetImpl>& net, const Optimizer& optimizer) {
  constexpr int kShards = 8;
  const std::string task = strategy.task_type() + ":" + std::to_string(strategy.task_id());
  const bool mine = task == options.who;
  bool sent = false;
  const auto reached = [&](std::uint64_t step, const std::string& phase) {
    if (!mine || sent || step != options.when || phase != options.phase) return;
    sent = true;
    std::cout << "signal " << options.signal << std::endl;
    if (options.signal == -1) return strategy.collectives()->Abort(muster::DataLoss("a checksum"));
    if (options.signal == -2) {
      const torch::Tensor by_element = torch::ones({2, 2}).to_sparse();
      (void)strategy.reduce(muster::ReduceOp::kSum,
                            muster::PerReplica<torch::Tensor>({by_element}));
    }
    std::raise(options.signal);
  };
  muster::Checkpoint state;
  state.track(net);
  if (!options.marks.empty()) state.track(Marked{std::make_shared<Marks>(options.marks, task)});
  state.track(optimizer);
  std::optional<Own> own;
  if (options.own) {
    own.emplace();
    for (const muster::Variable& one : {own->rows, own->mean, own->first, own->steps}) {
      state.track(one.name(), one);
    }
  }
  muster::CheckpointManager manager(state, options.save, 100);
  if (!options.save.empty() && manager.restore_latest()) std::cout << "restored" << std::endl;
  const auto save = [&](std::uint64_t step) {
    if (!options.meanwhile) return (void)manager.save(step);
    const std::string digits = std::to_string(step);
    state.save_async(options.save + "/step-" + std::string(12 - digits.size(), '0') + digits, step);
  };
  torch::Tensor loss;
  strategy.run_elastic(
      state,
      [&](const muster::ElasticStep& step) {
        reached(step.number(), "begin");
        if (!options.save.empty() && step.number() % options.every == 1 && step.number() > 1) {
          save(step.number() - 1);
        }
        if (options.slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        loss = step.backward(optimizer, [&](int shard) {
          torch::Tensor of_shard = loss_of(net, step.number(), shard, kShards);
          if (own.has_value()) own->see(of_shard, shard);
          reached(step.number(), "shard");
          return of_shard;
        });
        reached(step.number(), "summed");
        if (own.has_value() && step.worker() == 0) {
          strategy.run([&] { own->steps.assign_add(1); });
        }
        optimizer.step();
        reached(step.number(), "applied");
      },
      {.steps = options.steps,
       .start_within = options.alone,
       .logical_shards = kShards,
       .committed = [&](std::uint64_t step) {
         std::cout << "step " << step << " " << std::hexfloat << loss.template item<double>()
                   << std::defaultfloat << " of " << strategy.num_workers() << std::endl;
         reached(step, "committed");
       }});
  while (!options.stay.empty() && !std::ifstream(options.stay).good()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (!own.has_value()) return;
  for (const muster::Variable& one : {own->rows, own->mean, own->first, own->steps}) {
    print(one.name(), one.value());
  }
  for (const muster::Variable& buffer : net.buffers()) print(buffer.name(), buffer.value());
}

void run(const Options& options) {
  muster::MultiWorkerMirroredStrategy strategy({.elastic = true});
  const auto scope = strategy.scope();
  // Each worker has other first values: those of the first one count.
  torch::manual_seed(static_cast<std::uint64_t>(5 + options.first + strategy.task_id()));
  const auto net = strategy.distribute(Net(options.own));
  std::cout << "ready" << std::endl;
  if (options.adam) {
    train(strategy, options, net,
          strategy.optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01),
                                                 {.all_reduce_gradients = false}));
  } else {
    train(strategy, options, net,
          strategy.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.1).momentum(0.9),
                                                {.all_reduce_gradients = false}));
  }
  for (const muster::Variable& parameter : net.parameters()) {
    print(parameter.name(), parameter.value());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(options_of({argv + 1, argv + argc}));
  } catch (const muster::Error& error) {
    std::cout << "error " << to_string(error.code()) << " " << error.what() << std::endl;
    return 3;
  }
  return 0;
}
