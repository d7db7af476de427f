// What a program does to a distributed module outside run(): it reaches all copies.
#include <atomic>
#include <sstream>
#include <thread>

#include "strategy/train/checkpoint.h"
#include "strategy/train/loss.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/train/nets.h"

namespace muster::testing {
namespace {

struct NormalizedImpl : torch::nn::Cloneable<NormalizedImpl> {
  NormalizedImpl() { reset(); }
  void reset() override {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    last = register_module("last", torch::nn::Linear(4, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last->forward(norm->forward(x)); }
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear last = nullptr;
};
TORCH_MODULE(Normalized);

template <class M>
void CheckCopiesAreEqual(const DistributedModule<M>& net) {
  for (int r = 1; r < net.size(); ++r) {
    const auto others = net.copy(r)->named_parameters();
    for (const auto& item : net.copy(0)->named_parameters()) {
      CAPTURE(r, item.key());
      CHECK(others[item.key()].equal(item.value()));
    }
  }
}

// The replicas' own values of one parameter.
template <class M>
std::vector<torch::Tensor> seen_in_replicas(Strategy& strategy, const DistributedModule<M>& net) {
  return strategy
      .run([&] { return net->parameters()[0].detach().clone(); })  // the copy's first weight
      .values();
}

TEST_CASE("an initialiser that writes in place outside run() reaches every copy",
          "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const Net original = float64_net();
    const auto net = strategy->distribute(original);
    const auto optimizer =
        strategy->optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.1));
    const torch::Tensor ones = torch::ones({8, 6}, torch::kFloat64);

    torch::nn::init::constant_(net->first->weight, 1);
    for (const torch::Tensor& seen : seen_in_replicas(*strategy, net)) CHECK(seen.equal(ones));

    // Through the module that was given, too; and after steps of the optimizer.
    strategy->run([&] {
      net->forward(float64_batch(replica_id(), 4).x).sum().backward();
      optimizer.step();
    });
    {
      const torch::NoGradGuard no_grad;
      original->first->weight.fill_(2);
    }
    CHECK(net.variable("first.weight").value().equal(2 * ones));
    for (const torch::Tensor& seen : seen_in_replicas(*strategy, net)) CHECK(seen.equal(2 * ones));
    CheckCopiesAreEqual(net);
  }
}

TEST_CASE("load() of an archive outside run() reaches every copy, whose memory stays",
          "[strategy][unit]") {
  std::stringstream saved;
  {
    Net other = float64_net();
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : other->parameters()) parameter.fill_(0.25);
    torch::save(other, saved);
  }
  const std::string text = saved.str();
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto net = strategy->distribute(float64_net());
    const torch::Tensor expected = torch::full({8, 6}, 0.25, torch::kFloat64);
    torch::serialize::InputArchive archive;
    archive.load_from(text.data(), text.size());

    net->load(archive);

    CHECK(net.variable("first.weight").value().equal(expected));
    for (const torch::Tensor& seen : seen_in_replicas(*strategy, net)) CHECK(seen.equal(expected));
    CheckCopiesAreEqual(net);
  }
}

TEST_CASE("a copy that was changed alone, another than the first, is refused by name",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:1", "CPU:2"});
  const auto net = strategy.distribute(float64_net());
  const Variable bias = net.variable("second.bias");
  const torch::NoGradGuard no_grad;

  net.copy(1)->second->bias.fill_(3);

  CHECK(throws(ErrorCode::kFailedPrecondition, "second.bias/replica_1 was changed outside run()",
               [&] { strategy.run([] {}); }));
  bias.assign(1);
  strategy.run([] {});
  CHECK(bias.component(1).value().equal(torch::ones({3}, torch::kFloat64)));
}

TEST_CASE("what replicas do to their copies in run() is not taken for the program's",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());
  const torch::NoGradGuard no_grad;

  strategy.run([&] { net->second->bias.fill_(replica_id()); });
  strategy.run([] {});

  CHECK(net.copy(1)->second->bias.equal(torch::ones({3}, torch::kFloat64)));
  CHECK(net.copy(0)->second->bias.equal(torch::zeros({3}, torch::kFloat64)));
}

TEST_CASE("evaluation outside run() reads the mean of the copies' statistics, replicas their own",
          "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    torch::manual_seed(3);
    Normalized original;
    original->to(torch::kFloat64);
    const auto net = strategy->distribute(original);
    strategy->run([&] {
      torch::manual_seed(static_cast<std::uint64_t>(replica_id()));
      (void)net->forward(torch::randn({8, 4}, torch::kFloat64) + replica_id());
    });
    const auto own = strategy->run([&] { return net->norm->running_mean.clone(); }).values();
    torch::Tensor mean = torch::zeros({4}, torch::kFloat64);
    for (const torch::Tensor& one : own) mean += one / static_cast<double>(own.size());
    const torch::Tensor x = torch::randn({5, 4}, torch::kFloat64);

    net->eval();
    const torch::Tensor before = net->forward(x).detach();

    CHECK(net->norm->running_mean.allclose(mean, 1e-12, 1e-12));
    CHECK(net.variable("norm.running_mean").value().allclose(mean, 1e-12, 1e-12));
    // Replicas go on with their own.
    const auto again = strategy->run([&] { return net->norm->running_mean.clone(); }).values();
    for (std::size_t r = 0; r < own.size(); ++r) CHECK(again[r].equal(own[r]));
    // And the same is read again.
    CHECK(net->forward(x).detach().equal(before));
  }
}

TEST_CASE("saving and restoring does not change what a model gives outside run()",
          "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const TempFolder folder;
    torch::manual_seed(3);
    const auto net = strategy->distribute(Normalized());
    strategy->run([&] {
      torch::manual_seed(static_cast<std::uint64_t>(replica_id()));
      for (int i = 0; i < 3; ++i) (void)net->forward(torch::randn({8, 4}) * (1 + replica_id()));
    });
    Checkpoint checkpoint;
    checkpoint.track(net);
    const torch::Tensor x = torch::randn({5, 4});
    net->eval();
    const torch::Tensor before = net->forward(x).detach();

    checkpoint.save(folder / "one", 1);
    const torch::Tensor saved = net->forward(x).detach();
    checkpoint.restore(folder / "one");
    const torch::Tensor restored = net->forward(x).detach();

    CHECK(saved.equal(before));
    CHECK(restored.equal(before));
  }
}

TEST_CASE("statistics that are written outside run() reach all copies", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:1", "CPU:2", "CPU:3"});
  const auto net = strategy.distribute(Normalized());
  strategy.run([&] { (void)net->forward(torch::randn({8, 4}) + replica_id()); });

  net->norm->running_mean.fill_(7);

  const torch::Tensor sevens = torch::full({4}, 7.0f);
  CHECK(net.variable("norm.running_mean").value().equal(sevens));
  const auto own = strategy.run([&] { return net->norm->running_mean.clone(); });
  for (const torch::Tensor& one : own.values()) CHECK(one.equal(sevens));
}

TEST_CASE("what outlives its strategy throws", "[strategy][unit]") {
  auto strategy = std::make_unique<MirroredStrategy>(std::vector<std::string>{"CPU:0", "CPU:1"});
  const auto net = strategy->distribute(float64_net());
  const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.1));
  const Variable bias = net.variable("second.bias");
  Variable alone;
  {
    const auto scope = strategy->scope();
    alone = Variable::create("alone", 1.0);
  }

  strategy.reset();
  // Perhaps at the same address.
  const MirroredStrategy other({"CPU:0", "CPU:1"});

  const auto refused = [](const std::function<void()>& use) {
    return throws(ErrorCode::kFailedPrecondition, "has been destroyed", use);
  };
  CHECK(refused([&] { (void)bias.value(); }));
  CHECK(refused([&] { (void)alone.value(); }));
  CHECK(refused([&] { alone.assign(2); }));
  CHECK(refused([&] { alone.initialize(); }));
  CHECK(refused([&] { (void)alone.strategy(); }));
  CHECK(refused([&] { (void)net->first; }));
  CHECK(refused([&] { (void)net.strategy(); }));
  CHECK(refused([&] { optimizer.step(); }));
  CHECK(refused([&] { (void)optimizer.state(); }));
  CHECK(alone.name() == "alone");
}

TEST_CASE("in an open scope of a destroyed strategy everything is refused until it is closed",
          "[strategy][unit]") {
  const auto refused = [](const std::function<void()>& use) {
    return throws(ErrorCode::kFailedPrecondition,
                  "the strategy of the open scope has been destroyed", use);
  };
  for (const bool by_close : {true, false}) {
    CAPTURE(by_close);
    auto strategy = std::make_unique<MirroredStrategy>(std::vector<std::string>{"CPU:0", "CPU:1"});
    std::optional<Scope> scope(strategy->scope());

    strategy.reset();
    // Perhaps at the same address.
    MirroredStrategy other({"CPU:0", "CPU:1"});

    CHECK(refused([] { (void)get_strategy(); }));
    CHECK(refused([] { (void)get_replica_context(); }));
    CHECK(refused([] { (void)in_cross_replica_context(); }));
    CHECK(refused([] { (void)Variable::create("v", 1.0); }));
    CHECK(refused([&] { (void)other.run([] { return 1; }); }));
    CHECK(refused([&] { const auto inner = other.scope(); }));
    CHECK(refused([&] { (void)other.distribute(float64_net()); }));
    CHECK(refused([] { set_global_strategy(nullptr); }));
    by_close ? scope->close() : scope.reset();

    CHECK(&get_strategy() == &default_strategy());
    CHECK(other.run([] { return 1; })[0] == 1);
  }
}

// Each assignment reads the other variable, whose changes outside run() it takes over first.
TEST_CASE("two threads that assign weights of two modules to each other do not wait for ever",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto one = strategy.distribute(float64_net());
  const auto other = strategy.distribute(float64_net());
  const Variable v = one.parameters()[0];
  const Variable w = other.parameters()[0];
  v.assign(1.0, false);
  w.assign(1.0, false);
  std::atomic<int> begun{0};
  const auto assign = [&](const Variable& to, const Variable& from) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
    for (int i = 0; i < 2'000; ++i) to.assign(from, false);
  };
  std::thread beside([&] { assign(v, w); });
  assign(w, v);
  beside.join();

  CHECK(v.value().equal(torch::ones_like(v.value())));
  CheckCopiesAreEqual(one);
  CheckCopiesAreEqual(other);
}

TEST_CASE("a weight to which its own value is added is twice that on all copies",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());
  const Variable weight = net.parameters()[0];
  weight.assign(1.0, false);
  const auto own = [&, which = GENERATE(0, 1, 2)] {
    if (which == 2) return net.copy(0)->parameters()[0].detach();
    return which == 1 ? weight.component(0).value() : weight.value();
  };
  weight.assign_add(own(), false);

  CHECK(weight.value().equal(torch::full_like(weight.value(), 2.0)));
  CheckCopiesAreEqual(net);
}

TEST_CASE("a global strategy that was destroyed is told, until there is another",
          "[strategy][unit]") {
  auto strategy = std::make_unique<OneDeviceStrategy>("CPU:0");
  set_global_strategy(strategy.get());
  strategy.reset();
  const auto refused = [](const std::function<void()>& use) {
    return throws(ErrorCode::kFailedPrecondition, "global strategy has been destroyed", use);
  };

  CHECK(refused([] { (void)get_strategy(); }));
  CHECK(refused([] { (void)get_replica_context(); }));
  CHECK(refused([] { (void)Variable::create("v", 1.0); }));
  set_global_strategy(nullptr);

  CHECK(&get_strategy() == &default_strategy());
}

}  // namespace
}  // namespace muster::testing
