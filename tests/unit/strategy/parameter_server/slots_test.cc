// What optimizers on parameter servers remember, in checkpoints.
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/parameter_server/servers.h"

namespace muster {
namespace {

using testing::Servers;
using testing::throws;
namespace optim = torch::optim;

// A program's variables and its optimizer on so many servers, each cut into as many parts.
class Training {
 public:
  template <class Options>
  Training(std::uint32_t count, const Options& options)
      : servers(count), strategy(fixed_shards_partitioner(count)) {
    const auto scope = strategy.scope();
    w = Variable::create("w", torch::zeros({7, 2}));
    b = Variable::create("b", torch::zeros({7}));
    optimizer = ServerOptimizer(options, {w, b});
    checkpoint.track("w", w);
    checkpoint.track("b", b);
    checkpoint.track(optimizer);
  }
  // Steps `first`, `first` + 1, ... up to `last`.
  void Train(int first, int last) const {
    for (int step = first; step <= last; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(step));
      optimizer.apply_gradients({{torch::randn({7, 2}), w}, {torch::randn({7}), b}});
    }
  }

  Servers servers;
  ParameterServerStrategy strategy;
  Variable w;
  Variable b;
  ServerOptimizer optimizer;
  Checkpoint checkpoint;
};

template <class Options>
void check_goes_on(const Options& options) {
  INFO(c10::demangle(typeid(Options).name()));
  const testing::TempFolder folder;
  const std::string saved = folder / "saved";
  torch::Tensor w;
  torch::Tensor b;
  {
    const Training training(2, options);
    training.Train(1, 10);
    training.checkpoint.save(saved);
    training.Train(11, 20);
    w = training.w.value();
    b = training.b.value();
  }
  Training other(3, options);
  other.Train(30, 32);
  other.checkpoint.restore(saved).assert_consumed();
  other.Train(11, 20);
  CHECK(other.w.value().equal(w));
  CHECK(other.b.value().equal(b));
}

TEST_CASE("an optimizer goes on bit for bit on other servers and with other shards",
          "[strategy][unit][CKP-09]") {
  check_goes_on(optim::SGDOptions(0.1).momentum(0.9));
  check_goes_on(optim::AdamOptions(0.01));
  check_goes_on(optim::AdamWOptions(0.01));
  check_goes_on(optim::AdagradOptions(0.1).initial_accumulator_value(0.5));
}

TEST_CASE("a checkpoint without an optimizer's slots restores it as before its first update",
          "[strategy][unit]") {
  const testing::TempFolder folder;
  const std::string saved = folder / "saved";
  const optim::AdagradOptions options = optim::AdagradOptions(0.1).initial_accumulator_value(0.5);
  Training training(2, options);
  training.checkpoint.save(saved);
  training.Train(1, 3);
  const torch::Tensor w = training.w.value();
  training.checkpoint.restore(saved);
  training.Train(1, 3);
  CHECK(training.w.value().equal(w));
}

TEST_CASE("slots that do not fit change nothing", "[strategy][unit]") {
  const testing::TempFolder folder;
  const std::string saved = folder / "saved";
  {
    const Servers servers(1);
    ParameterServerStrategy strategy;
    const auto scope = strategy.scope();
    const Variable w = Variable::create("w", torch::zeros({7, 2}));
    const Variable wrong = Variable::create("wrong", torch::zeros({2}));
    const Checkpoint checkpoint({{"w", w}, {"w/slot/exp_avg", wrong}});
    checkpoint.save(saved);
  }
  Training training(2, optim::AdamOptions(0.01));
  training.Train(1, 1);
  const torch::Tensor w = training.w.value();
  CHECK(throws(ErrorCode::kInvalidArgument, "optimizer state w/slot/exp_avg has shape [2]",
               [&] { training.checkpoint.restore(saved); }));
  CHECK(training.w.value().equal(w));
}

TEST_CASE("a count of updates below zero is refused and changes nothing", "[strategy][unit]") {
  const testing::TempFolder folder;
  const std::string saved = folder / "saved";
  {
    Checkpoint wrong;
    wrong.create("w", torch::zeros({7, 2}));
    wrong.create("w/slot/exp_avg", torch::zeros({7, 2}));
    wrong.create("w/slot/exp_avg_sq", torch::zeros({7, 2}));
    wrong.create("w/slot/step", std::int64_t{-3});
    wrong.save(saved);
  }
  Training training(2, optim::AdamOptions(0.01));
  training.Train(1, 1);
  const torch::Tensor w = training.w.value();

  CHECK(throws(ErrorCode::kInvalidArgument, "optimizer state w/slot/step is -3",
               [&] { training.checkpoint.restore(saved); }));

  CHECK(training.w.value().equal(w));
}

}  // namespace
}  // namespace muster
