// A program of several workers, as tests/unit/strategy/multi_worker_mirrored starts it: trains a
// network in float64 under TF_CONFIG and prints each step's loss, bit for bit.
//
//   multi_worker <steps> [leave|extra|shape|stop <task> <step>]
//   multi_worker <steps> started|mirrored|fashion|plain
//
// "started": eight sums are in flight from one step to the next. "mirrored": a MirroredStrategy
// that names no devices. "fashion": the network and the data of tests/support/fashion.h, with
// momentum; "plain": what one libtorch loop makes of these. The task that is named does at that
// step what it should not: it ends, makes one more call, brings another shape, or stops itself.
// Errors are printed; the exit code is 3.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "strategy/muster.h"
#include "tests/support/fashion.h"

namespace {

namespace fashion = muster::testing::fashion;

using Row = std::tuple<torch::Tensor, torch::Tensor>;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kRows = 160;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(12, 24));
    last = register_module("last", torch::nn::Linear(24, 4));
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last->forward(torch::tanh(hidden->forward(x)));
  }
  torch::nn::Linear hidden = nullptr;
  torch::nn::Linear last = nullptr;
};
TORCH_MODULE(Net);

void misbehave(const std::string& how) {
  muster::ReplicaContext& context = muster::replica_context();
  if (how == "leave") std::exit(0);
  if (how == "stop") std::raise(SIGSTOP);
  if (how == "extra") context.all_reduce(muster::ReduceOp::kSum, torch::ones({3}));
  if (how == "shape") context.all_reduce(muster::ReduceOp::kMean, torch::ones({5, 7}));
}

void print_loss(double loss) { std::cout << "loss " << std::hexfloat << loss << std::endl; }

using InFlight = std::vector<muster::Started<torch::Tensor>>;

// Begins sums of `step`, and takes those of the step before.
void sum_on_the_way(InFlight& in_flight, std::int64_t step, int workers) {
  const InFlight before = std::exchange(in_flight, {});
  for (int i = 0; i < 8; ++i) {
    const auto mine = torch::full({10'000 * i}, step, torch::kFloat64);
    in_flight.push_back(muster::replica_context().start_all_reduce(muster::ReduceOp::kSum, mine));
  }
  for (const auto& sum : before) {
    if (sum.wait().ne((step - 1) * workers).any().item<bool>()) {
      muster::raise(muster::ErrorCode::kInternal, "a wrong sum");
    }
  }
}

std::unique_ptr<muster::Strategy> strategy_for(const std::string& how) {
  if (how == "mirrored") return std::make_unique<muster::MirroredStrategy>();
  return std::make_unique<muster::MultiWorkerMirroredStrategy>();
}

std::string this_task() {
  muster::TFConfigClusterResolver resolver;
  return resolver.task_type().value_or("worker") + ":" +
         std::to_string(resolver.task_id().value_or(0));
}

void train(std::int64_t steps, const std::string& how, const std::string& who, std::int64_t when) {
  const std::unique_ptr<muster::Strategy> made = strategy_for(how);
  muster::Strategy& strategy = *made;
  const int worker = strategy.first_replica() / strategy.num_local_replicas();
  const int workers = strategy.num_replicas_in_sync() / strategy.num_local_replicas();
  const bool mine = this_task() == who;
  const auto scope = strategy.scope();
  // Each worker has other first values: the chief's count.
  torch::manual_seed(static_cast<std::uint64_t>(5 + worker));
  const auto net = strategy.distribute(Net());
  const auto optimizer =
      strategy.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.1).momentum(0.9));
  const torch::Tensor x =
      torch::sin(torch::arange(kRows * 12, torch::kFloat64) * 0.7).reshape({kRows, 12});
  const torch::Tensor y = x.narrow(1, 0, 4).argmax(1);
  const auto rows = muster::dataset::from_tensor_slices(Row{x, y}).repeat().batch(kBatch);
  auto data = muster::experimental_distribute_dataset(strategy, rows).iterator();
  muster::Mean mean("loss");
  InFlight in_flight;
  std::cout << "joined " << worker << " of " << workers << std::endl;
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto losses = strategy.run(
        [&](const Row& piece) {
          if (mine && step == when) misbehave(how);
          if (how == "started") sum_on_the_way(in_flight, step, workers);
          optimizer.zero_grad();
          const auto each = torch::nn::functional::cross_entropy(
              net->forward(std::get<0>(piece)), std::get<1>(piece),
              torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
          const auto loss = muster::compute_average_loss(each, kBatch);
          loss.backward();
          optimizer.step();
          mean.update(loss.item<double>());
          return loss.detach();
        },
        data.get_next());
    const double loss = strategy.reduce(muster::ReduceOp::kSum, losses).item<double>();
    print_loss(loss);
  }
  const double all = mean.result();
  std::cout << "mean " << std::hexfloat << all << std::endl;
}

fashion::Course fashion_course(std::int64_t steps) {
  return {.seed = 3, .type = torch::kFloat64, .steps = static_cast<int>(steps)};
}
const auto kFashionOptions = torch::optim::SGDOptions(0.02).momentum(0.9);

void train_fashion(std::int64_t steps) {
  muster::MultiWorkerMirroredStrategy strategy;
  const std::int64_t rows = fashion::kBatch / strategy.num_replicas_in_sync();
  const auto scope = strategy.scope();
  fashion::Course course = fashion_course(steps);
  const auto net = strategy.distribute(course.Begin());
  const auto optimizer = strategy.optimizer<torch::optim::SGD>(net, kFashionOptions);
  const auto each = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
  for (int step = 0; step < course.steps; ++step) {
    const auto parts = strategy.run([&] {
      const int replica = muster::replica_context().replica_id_in_sync_group();
      const fashion::Examples mine = course.Rows(step, rows * replica, rows);
      optimizer.zero_grad();
      const torch::Tensor loss = muster::compute_average_loss(
          torch::nn::functional::cross_entropy(net->forward(mine.images), mine.labels, each),
          fashion::kBatch);
      loss.backward();
      optimizer.step();
      return loss.detach();
    });
    print_loss(strategy.reduce(muster::ReduceOp::kSum, parts).item<double>());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    const std::string how = argc > 2 ? argv[2] : "";
    if (how == "fashion") {
      train_fashion(std::stol(argv[1]));
    } else if (how == "plain") {
      for (const double loss : fashion::PlainLosses<torch::optim::SGD>(
               fashion_course(std::stol(argv[1])), kFashionOptions)) {
        print_loss(loss);
      }
    } else if (argc > 4) {
      train(std::stol(argv[1]), how, argv[3], std::stol(argv[4]));
    } else {
      train(std::stol(argv[1]), how, "", 0);
    }
  } catch (const muster::Error& error) {
    std::cout << "error " << error.what() << std::endl;
    return 3;
  }
  return 0;
}
