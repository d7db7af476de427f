// Modules and their optimizers in checkpoints.
#include "strategy/train/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/train/nets.h"

namespace muster::testing {
namespace {

constexpr std::int64_t kBatchRows = 12;

Net OtherNet() {
  torch::manual_seed(99);
  Net net;
  net->to(torch::kFloat64);
  return net;
}

// A module and its optimizer, as a program has them.
template <class Torch, class Options>
struct Program {
  Program(Strategy& on, const Net& start, const Options& options)
      : strategy(on), net(on.distribute(start)), optimizer(on.optimizer<Torch>(net, options)) {}

  void Train(int from, int to) {
    for (int step = from; step < to; ++step) {
      const Batch batch = float64_batch(step, kBatchRows);
      const std::int64_t rows = kBatchRows / strategy.num_replicas_in_sync();
      strategy.run([&] {
        const Batch mine = batch.part(rows * replica_id(), rows);
        optimizer.zero_grad();
        compute_average_loss(squares(net->forward(mine.x), mine.y), kBatchRows).backward();
        optimizer.step();
      });
    }
  }
  Checkpoint Tracked() const {
    Checkpoint checkpoint;
    checkpoint.track(net);
    checkpoint.track(optimizer);
    return checkpoint;
  }

  Strategy& strategy;
  DistributedModule<NetImpl> net;
  DistributedOptimizer<Torch> optimizer;
};

template <class Torch, class Options>
void CheckResumed(const std::string& what, const Options& options) {
  const TempFolder folder;
  int saved = 0;
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(what, name);
    Program<Torch, Options> whole(*strategy, float64_net(), options);
    whole.Train(0, 5);
    const std::string path = folder / std::to_string(saved++);
    whole.Tracked().save(path, 5);
    whole.Train(5, 10);

    // Somebody else's weights and a state of its own: all of it is replaced.
    Program<Torch, Options> resumed(*strategy, OtherNet(), options);
    resumed.Train(20, 22);
    Checkpoint checkpoint = resumed.Tracked();
    (void)checkpoint.restore(path).assert_consumed();
    resumed.Train(5, 10);

    for (int r = 0; r < resumed.net.size(); ++r) {
      CHECK(difference(*resumed.net.copy(r), *whole.net.copy(0)) == 0);
    }
    MirroredStrategy three({"CPU:0", "CPU:1", "CPU:2"});
    Program<Torch, Options> elsewhere(three, OtherNet(), options);
    (void)elsewhere.Tracked().restore(path).assert_consumed();
    elsewhere.Train(5, 10);
    CHECK(difference(*elsewhere.net.copy(2), *whole.net.copy(0)) < 1e-12);
  }
}

TEST_CASE("training that is resumed from a checkpoint is training that went on",
          "[strategy][unit]") {
  CheckResumed<torch::optim::SGD>("momentum", torch::optim::SGDOptions(0.02).momentum(0.9));
  CheckResumed<torch::optim::Adam>("adam", torch::optim::AdamOptions(0.01).amsgrad(true));
  CheckResumed<torch::optim::Adagrad>(
      "adagrad", torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1));
  CheckResumed<torch::optim::RMSprop>("rmsprop", torch::optim::RMSpropOptions(0.005).momentum(0.5));
}

using Adam = Program<torch::optim::Adam, torch::optim::AdamOptions>;

TEST_CASE("an optimizer that is tracked after a restore gets its state at once",
          "[strategy][unit]") {
  const TempFolder folder;
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  Adam whole(strategy, float64_net(), 0.01);
  whole.Train(0, 3);
  whole.Tracked().save(folder / "3", 3);
  whole.Train(3, 6);

  Checkpoint checkpoint;
  const RestoreStatus status = checkpoint.restore(folder / "3");
  CHECK(status.unused().size() == 4 + 4 * 3);
  Adam late(strategy, OtherNet(), 0.01);
  checkpoint.track(late.net);
  checkpoint.track(late.optimizer);
  (void)status.assert_consumed();
  late.Train(3, 6);

  CHECK(difference(*late.net.copy(1), *whole.net.copy(0)) == 0);
}

TEST_CASE("a checkpoint from before the first step puts an optimizer back there",
          "[strategy][unit]") {
  const TempFolder folder;
  CentralStorageStrategy strategy({"CPU:0", "CPU:1"});
  Adam whole(strategy, float64_net(), 0.01);
  whole.Tracked().save(folder / "0");
  whole.Train(0, 3);
  Adam again(strategy, OtherNet(), 0.01);
  again.Train(7, 9);

  (void)again.Tracked().restore(folder / "0").assert_consumed();
  again.Train(0, 3);

  CHECK(difference(*again.net.copy(1), *whole.net.copy(0)) == 0);
}

TEST_CASE("steps that a job's checkpoint counts for all parameters together are theirs",
          "[strategy][unit]") {
  const TempFolder folder;
  Checkpoint job;
  for (const char* slot : {"exp_avg", "exp_avg_sq"}) {
    job.create(std::string("second.bias/slot/") + slot,
               [] { return torch::full({3}, 0.5, torch::kFloat64); });
  }
  job.save(folder / "40", 40);
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  Adam program(strategy, float64_net(), 0.01);

  (void)program.Tracked().restore(folder / "40");

  const auto state = program.optimizer.state();
  CHECK(state.size() == 3);
  CHECK(state.at("second.bias/slot/step").item<std::int64_t>() == 40);
  CHECK(state.at("second.bias/slot/exp_avg").equal(torch::full({3}, 0.5, torch::kFloat64)));
}

// The same optimizer, before and after; what the state lacks is 0, as in its first step.
template <class Torch, class Options>
void CheckOtherOptions(const Options& before, const Options& after, const std::string& added) {
  const TempFolder folder;
  int saved = 0;
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name, added);
    Program<Torch, Options> first(*strategy, float64_net(), before);
    first.Train(0, 3);
    const std::string path = folder / std::to_string(saved++);
    first.Tracked().save(path, 3);
    Program<Torch, Options> other(*strategy, OtherNet(), after);
    other.Train(20, 22);

    (void)other.Tracked().restore(path).assert_existing_matched();
    std::map<std::string, torch::Tensor> state = other.optimizer.state();
    CHECK_FALSE(state.at("first.weight/slot/" + added).any().item<bool>());
    other.Train(3, 5);

    for (int r = 1; r < other.net.size(); ++r) {
      CHECK(difference(*other.net.copy(r), *other.net.copy(0)) == 0);
    }
    state = other.optimizer.state();
    CHECK(state.at("first.weight/slot/step").item<std::int64_t>() == 5);
  }
}

TEST_CASE("an optimizer goes on from the state of one with fewer options", "[strategy][unit]") {
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::RMSpropOptions;
  CheckOtherOptions<torch::optim::Adam>(AdamOptions(0.01), AdamOptions(0.01).amsgrad(true),
                                        "max_exp_avg_sq");
  CheckOtherOptions<torch::optim::AdamW>(AdamWOptions(0.01), AdamWOptions(0.01).amsgrad(true),
                                         "max_exp_avg_sq");
  CheckOtherOptions<torch::optim::RMSprop>(RMSpropOptions(0.01), RMSpropOptions(0.01).momentum(0.5),
                                           "momentum");
  CheckOtherOptions<torch::optim::RMSprop>(RMSpropOptions(0.01),
                                           RMSpropOptions(0.01).centered(true), "grad_avg");
}

TEST_CASE("what does not fit the optimizer is refused, and nothing is restored",
          "[strategy][unit]") {
  const TempFolder folder;
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  Adam program(strategy, float64_net(), 0.01);
  Checkpoint wrong;
  wrong.create("second.bias", [] { return torch::zeros({3}, torch::kFloat64); });
  wrong.create("second.bias/slot/exp_avg", [] { return torch::zeros({2}, torch::kFloat64); });
  wrong.create("second.bias/slot/exp_avg_sq", [] { return torch::zeros({3}, torch::kFloat64); });
  wrong.save(folder / "1", 1);
  const torch::Tensor before = program.net.variable("second.bias").value().detach().clone();

  CHECK(throws(ErrorCode::kInvalidArgument, "second.bias/slot/exp_avg",
               [&] { (void)program.Tracked().restore(folder / "1"); }));

  CHECK(program.net.variable("second.bias").value().equal(before));
  CHECK(program.optimizer.state().empty());
}

TEST_CASE("steps that cannot be counted and sparse slots are refused and change nothing",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  Adam program(strategy, float64_net(), 0.01);
  program.Train(0, 2);
  const auto before = program.optimizer.state();
  const auto refused = [&](const std::string& slot, const torch::Tensor& value,
                           const std::string& part) {
    auto changed = before;
    changed["second.bias/slot/" + slot] = value;
    INFO(part);
    CHECK(throws(ErrorCode::kInvalidArgument, "second.bias/slot/" + slot + " is " + part,
                 [&] { program.optimizer.load_state(changed); }));
  };

  refused("step", torch::scalar_tensor(-1, torch::kLong), "-1");
  refused("step", torch::scalar_tensor(1.5, torch::kDouble), "1.5");
  refused("step", torch::scalar_tensor(1e30, torch::kDouble), "1e+30");
  refused("exp_avg", torch::zeros({3}, torch::kFloat64).to_sparse(), "sparse");

  const auto after = program.optimizer.state();
  for (const auto& [name, value] : before) CHECK(after.at(name).equal(value));
}

TEST_CASE("two optimizers of one checkpoint need names that differ", "[strategy][unit]") {
  const TempFolder folder;
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  Adam generator(strategy, float64_net(), 0.01);
  Adam critic(strategy, OtherNet(), 0.01);
  generator.Train(0, 2);
  critic.Train(0, 3);
  Checkpoint checkpoint = generator.Tracked();
  checkpoint.track(generator.optimizer);  // the same one again changes nothing

  CHECK(throws(ErrorCode::kAlreadyExists, "first.weight", [&] { checkpoint.track(critic.net); }));
  CHECK(throws(ErrorCode::kAlreadyExists, "/slot/", [&] { checkpoint.track(critic.optimizer); }));
  checkpoint.track(critic.net, "critic/");
  checkpoint.track(critic.optimizer, "critic/");
  checkpoint.save(folder / "2", 2);
  generator.Train(2, 3);
  critic.Train(3, 4);
  (void)checkpoint.restore(folder / "2").assert_consumed();

  const auto state = critic.optimizer.state();
  CHECK(state.at("first.bias/slot/step").item<std::int64_t>() == 3);
  CHECK(generator.optimizer.state().at("first.bias/slot/step").item<std::int64_t>() == 2);
}

}  // namespace
}  // namespace muster::testing
