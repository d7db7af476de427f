// Distributed modules and their optimizers on parameter servers, beside libtorch alone.
#include <barrier>
#include <memory>
#include <optional>
#include <vector>

#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/parameter_server/servers.h"

namespace modules_of_servers {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }  // NOLINT(clang-analyzer-optin.cplusplus.VirtualCall)
  void reset() override {
    fc1 = register_module("fc1", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    fc2 = register_module("fc2", torch::nn::Linear(8, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return fc2->forward(norm->forward(torch::relu(fc1->forward(x))));
  }
  torch::nn::Linear fc1{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear fc2{nullptr};
};
TORCH_MODULE(Net);

// State of the test that runs; closures run on threads of its process.
std::optional<muster::DistributedModule<NetImpl>> shared_net;
std::shared_ptr<muster::DistributedOptimizerBase> trainer;
std::optional<muster::DistributedModule<torch::nn::EmbeddingImpl>> embedding;
std::unique_ptr<std::barrier<>> meeting;

double net_step(const torch::Tensor& x, const torch::Tensor& y) {
  const torch::Tensor loss = ((*shared_net)(x)-y).pow(2).mean();
  loss.backward();
  trainer->step();
  return loss.item<double>();
}
double net_step_at(const torch::Tensor& x, const torch::Tensor& y, double rate) {
  trainer->set_learning_rate(rate);
  return net_step(x, y);
}
double rate_here() { return trainer->learning_rate(); }
// Half of the batch for each replica.
void step_in_replicas(const torch::Tensor& x, const torch::Tensor& y) {
  shared_net->strategy().run(
      [](const torch::Tensor& own_x, const torch::Tensor& own_y) {
        ((*shared_net)(own_x)-own_y).pow(2).sum().div(16).backward();
        trainer->step();
      },
      muster::PerReplica<torch::Tensor>(x.chunk(2)), muster::PerReplica<torch::Tensor>(y.chunk(2)));
}
// What the sum of the last layer's bias is after each of two steps of 1.
std::vector<float> sees_its_steps() {
  std::vector<float> seen{(*shared_net)->fc2->bias.item<float>()};
  for (int i = 0; i < 2; ++i) {
    (*shared_net)->zero_grad();
    (*shared_net)->fc2->bias.sum().backward();
    trainer->step();
    seen.push_back((*shared_net)->fc2->bias.item<float>());
  }
  return seen;
}
// A gradient, and whether the module trains.
std::pair<bool, bool> leaves_modes_and_gradients() {
  auto& used = *shared_net;
  const std::pair found{used->fc2->bias.grad().defined(), used->is_training()};
  used->fc2->bias.sum().backward();
  used->eval();
  return found;
}
// The gradient of one of two closures that run at once.
float gradient_beside_another(float times) {
  const torch::Tensor loss = (*shared_net)->fc2->bias.sum() * times;
  meeting->arrive_and_wait();
  loss.backward();
  meeting->arrive_and_wait();
  return shared_net->variable("fc2.bias").value().grad().item<float>();
}
void embedding_step(const torch::Tensor& ids) {
  (*embedding)(ids).sum().backward();
  trainer->step();
}

}  // namespace modules_of_servers

MUSTER_FUNCTION(modules_of_servers::net_step);
MUSTER_FUNCTION(modules_of_servers::net_step_at);
MUSTER_FUNCTION(modules_of_servers::rate_here);
MUSTER_FUNCTION(modules_of_servers::step_in_replicas);
MUSTER_FUNCTION(modules_of_servers::sees_its_steps);
MUSTER_FUNCTION(modules_of_servers::leaves_modes_and_gradients);
MUSTER_FUNCTION(modules_of_servers::gradient_beside_another);
MUSTER_FUNCTION(modules_of_servers::embedding_step);

namespace muster {
namespace {

using namespace modules_of_servers;
using testing::Servers;
using testing::throws;
namespace optim = torch::optim;

struct Batch {
  torch::Tensor x;
  torch::Tensor y;
};
std::vector<Batch> batches(int count) {
  std::vector<Batch> all;
  for (int i = 0; i < count; ++i) {
    const torch::Tensor x = torch::randn({16, 4});
    all.push_back({x, x.sum(1, /*keepdim=*/true)});
  }
  return all;
}

double largest_difference(const DistributedModule<NetImpl>& ours, Net theirs) {
  double most = 0;
  for (const auto& item : theirs->named_parameters()) {
    const torch::Tensor value = ours.variable(item.key()).value();
    most = std::max(most, (value - item.value()).abs().max().item<double>());
  }
  return most;
}

template <class TheirOptimizer, class Options>
void train_alone(Net theirs, const Options& options, const std::vector<Batch>& data) {
  TheirOptimizer alone(theirs->parameters(), options);
  for (const Batch& batch : data) {
    alone.zero_grad();
    (theirs->forward(batch.x) - batch.y).pow(2).mean().backward();
    alone.step();
  }
}

class ModuleFixture {
 public:
  explicit ModuleFixture(std::uint32_t count = 2, int workers = 1,
                         const std::vector<std::string>& devices = {})
      : servers(count, workers), strategy(fixed_shards_partitioner(2), devices) {
    torch::manual_seed(7);
  }
  ~ModuleFixture() {
    shared_net.reset();
    embedding.reset();
    trainer.reset();
  }
  template <class Optimizer, class Options>
  void distribute(Net module, const Options& options) {
    shared_net = strategy.distribute(module);
    trainer = std::make_shared<DistributedOptimizer<Optimizer>>(
        strategy.optimizer<Optimizer>(*shared_net, options));
  }

  Servers servers;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator{servers.link};
};

template <class Optimizer, class Options>
void check_equals_torch(const Options& options) {
  INFO(c10::demangle(typeid(Optimizer).name()));
  ModuleFixture fixture;
  Net theirs;
  fixture.distribute<Optimizer>(Net(std::dynamic_pointer_cast<NetImpl>(theirs->clone())), options);
  const std::vector<Batch> data = batches(30);
  train_alone<Optimizer>(theirs, options, data);

  for (const Batch& batch : data) fixture.coordinator.schedule<net_step>(batch.x, batch.y);
  fixture.coordinator.join();

  CHECK(largest_difference(*shared_net, theirs) < 1e-5);
  CHECK(largest_difference(*shared_net, Net()) > 1e-2);
}

TEST_CASE("one worker trains a distributed module as libtorch does alone", "[strategy][unit]") {
  check_equals_torch<optim::SGD>(optim::SGDOptions(0.05));
  check_equals_torch<optim::SGD>(optim::SGDOptions(0.02).momentum(0.9));
  check_equals_torch<optim::Adam>(optim::AdamOptions(0.01));
  check_equals_torch<optim::AdamW>(optim::AdamWOptions(0.01));
  check_equals_torch<optim::Adagrad>(optim::AdagradOptions(0.05));
}

TEST_CASE("parameters are variables on servers under the module's names, buffers stay here",
          "[strategy][unit]") {
  ModuleFixture fixture;
  fixture.distribute<optim::SGD>(Net(), optim::SGDOptions(1));
  const Variable weight = shared_net->variable("fc1.weight");
  CHECK(ShardedVariable(weight).size() == 2);
  CHECK(weight.devices() == std::vector{testing::device_of_server(0)});
  CHECK(throws(ErrorCode::kInvalidArgument, "norm.running_mean is on no parameter server",
               [&] { (void)ShardedVariable(shared_net->variable("norm.running_mean")); }));
}

TEST_CASE("replicas of one worker make one update by the sum of their gradients",
          "[strategy][unit]") {
  ModuleFixture fixture(2, 1, {"CPU:0", "CPU:1"});
  REQUIRE(fixture.strategy.num_replicas_in_sync() == 2);
  Net theirs;
  theirs->norm->eval();
  fixture.distribute<optim::Adam>(Net(std::dynamic_pointer_cast<NetImpl>(theirs->clone())),
                                  optim::AdamOptions(0.01));
  (*shared_net)->norm->eval();
  const std::vector<Batch> data = batches(20);
  train_alone<optim::Adam>(theirs, optim::AdamOptions(0.01), data);

  for (const Batch& batch : data) fixture.coordinator.schedule<step_in_replicas>(batch.x, batch.y);
  fixture.coordinator.join();

  CHECK(largest_difference(*shared_net, theirs) < 1e-5);
}

TEST_CASE("a sparse embedding's gradient reaches the servers as rows", "[strategy][unit]") {
  ModuleFixture fixture;
  embedding = fixture.strategy.distribute(
      torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 2).sparse(true)));
  // With momentum a gradient of all rows would go on moving those that were looked up once.
  trainer = std::make_shared<DistributedOptimizer<optim::SGD>>(
      fixture.strategy.optimizer<optim::SGD>(*embedding, optim::SGDOptions(1).momentum(0.5)));
  const torch::Tensor start = embedding->variable("weight").value().detach().clone();

  fixture.coordinator.schedule<embedding_step>(torch::tensor({3, 7, 7}));
  fixture.coordinator.schedule<embedding_step>(torch::tensor({7}));
  fixture.coordinator.join();

  torch::Tensor moved = torch::zeros({10, 2});
  moved[3] -= 1;
  moved[7] -= 2 + 0.5 * 2 + 1;
  CHECK((embedding->variable("weight").value() - start - moved).abs().max().item<float>() < 1e-6);
}

TEST_CASE("a closure's module has the values of its own steps", "[strategy][unit]") {
  ModuleFixture fixture;
  fixture.distribute<optim::SGD>(Net(), optim::SGDOptions(1));
  const float start = shared_net->variable("fc2.bias").value().item<float>();
  const std::vector<float> seen = fixture.coordinator.schedule<sees_its_steps>().fetch();
  CHECK(seen == std::vector{start, start - 1, start - 2});
  CHECK(shared_net->variable("fc2.bias").value().item<float>() == start - 2);
}

TEST_CASE("a closure finds neither gradients nor modes of the one before", "[strategy][unit]") {
  ModuleFixture fixture;
  fixture.distribute<optim::SGD>(Net(), optim::SGDOptions(1));
  for (int i = 0; i < 3; ++i) {
    CHECK(fixture.coordinator.schedule<leaves_modes_and_gradients>().fetch() ==
          std::pair{false, true});
  }
  (*shared_net)->eval();
  CHECK(fixture.coordinator.schedule<leaves_modes_and_gradients>().fetch() ==
        std::pair{false, false});
}

TEST_CASE("closures that run at once compute with copies of their own", "[strategy][unit]") {
  ModuleFixture fixture(2, 2);
  fixture.distribute<optim::SGD>(Net(), optim::SGDOptions(1));
  meeting = std::make_unique<std::barrier<>>(2);
  const auto first = fixture.coordinator.schedule<gradient_beside_another>(2.0F);
  const auto second = fixture.coordinator.schedule<gradient_beside_another>(3.0F);
  CHECK(first.fetch() == 2);
  CHECK(second.fetch() == 3);
}

TEST_CASE("a learning rate that a closure sets is its own", "[strategy][unit]") {
  ModuleFixture fixture;
  fixture.distribute<optim::SGD>(Net(), optim::SGDOptions(0.5));
  const torch::Tensor start = shared_net->variable("fc1.weight").value().detach().clone();
  const Batch batch = batches(1)[0];
  fixture.coordinator.schedule<net_step_at>(batch.x, batch.y, 0.0);
  fixture.coordinator.join();
  CHECK(shared_net->variable("fc1.weight").value().equal(start));
  CHECK(fixture.coordinator.schedule<rate_here>().fetch() == 0.5);
  fixture.coordinator.schedule<net_step>(batch.x, batch.y);
  fixture.coordinator.join();
  CHECK_FALSE(shared_net->variable("fc1.weight").value().equal(start));
}

TEST_CASE("the driver computes with the values on the servers, and its steps are at once",
          "[strategy][unit]") {
  ModuleFixture fixture;
  fixture.distribute<optim::SGD>(Net(), optim::SGDOptions(1));
  const Variable bias = shared_net->variable("fc2.bias");
  bias.assign(torch::tensor({5.0F}));
  CHECK((*shared_net)->fc2->bias.item<float>() == 5);
  (*shared_net)->fc2->bias.sum().backward();
  trainer->step();
  CHECK(bias.value().item<float>() == 4);
  shared_net->zero_grad();
  trainer->step();
  CHECK(bias.value().item<float>() == 4);
}

TEST_CASE("a distributed module is saved and loaded by its values on the servers",
          "[strategy][unit]") {
  const testing::TempFolder folder;
  const std::string file = folder / "net.pt";
  ModuleFixture fixture;
  fixture.distribute<optim::SGD>(Net(), optim::SGDOptions(1));
  const Variable bias = shared_net->variable("fc2.bias");
  bias.assign(torch::tensor({5.0F}));
  shared_net->save(file);
  Net theirs;
  torch::load(theirs, file);
  CHECK(theirs->fc2->bias.item<float>() == 5);
  bias.assign(torch::tensor({6.0F}));
  shared_net->load(file);
  CHECK(bias.value().item<float>() == 5);
}

TEST_CASE("a module exported of one split is loaded into another; its file has whole parameters",
          "[strategy][unit][SHV-25]") {
  const torch::Tensor values = torch::arange(1.0, 7.0).view({6, 1});
  const auto options = torch::nn::LinearOptions(1, 6).bias(false);
  const std::vector<std::pair<int, int>> splits{{2, 2}, {2, 3}, {3, 2}, {2, 1}, {1, 1}};
  for (const auto& split : splits) {
    const int before = split.first;
    const int after = split.second;
    CAPTURE(before, after);
    const testing::TempFolder folder;
    const std::string file = folder / "linear.pt";
    // A program of its own each.
    const auto distributed_over = [&](int shards, const auto& use) {
      const Servers servers;
      ParameterServerStrategy strategy(fixed_shards_partitioner(shards));
      auto net = strategy.distribute(torch::nn::Linear(options));
      const Variable weight = net.variable("weight");
      CHECK(ShardedVariable(weight).size() == shards);
      use(net, weight);
    };
    distributed_over(before, [&](auto& net, const Variable& weight) {
      weight.assign(values);
      net.save(file);
    });

    torch::nn::Linear whole(options);
    torch::load(whole, file);
    CHECK(whole->weight.equal(values));
    distributed_over(after, [&](auto& net, const Variable& weight) {
      CHECK_FALSE(weight.value().equal(values));
      net.load(file);
      CHECK(weight.value().equal(values));
      // The last row is the last shard's.
      CHECK(ShardedVariable(weight).value_of_shard(after - 1)[-1].item<float>() == 6);
    });
  }
}

TEST_CASE("what parameter servers cannot have of modules and optimizers is refused by name",
          "[strategy][unit]") {
  ModuleFixture fixture;
  shared_net = fixture.strategy.distribute(Net());
  CHECK(throws(ErrorCode::kUnimplemented, "RMSprop", [&] {
    (void)fixture.strategy.optimizer<optim::RMSprop>(*shared_net, optim::RMSpropOptions(0.1));
  }));
  const auto sgd = fixture.strategy.optimizer<optim::SGD>(*shared_net, optim::SGDOptions(1));
  CHECK(throws(ErrorCode::kUnimplemented, "torch_optimizer() of torch::optim::SGD",
               [&] { (void)sgd.torch_optimizer(); }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "has an optimizer already", [&] {
    (void)fixture.strategy.optimizer<optim::SGD>(*shared_net, optim::SGDOptions(1));
  }));
  CHECK(throws(ErrorCode::kAlreadyExists, "variable fc1.weight",
               [&] { (void)fixture.strategy.distribute(Net()); }));
}

TEST_CASE("an optimizer's groups have options of their own on the servers", "[strategy][unit]") {
  ModuleFixture fixture;
  shared_net = fixture.strategy.distribute(Net());
  const std::vector<ParameterGroup<optim::SGDOptions>> groups{{{"fc2"}, optim::SGDOptions(0)}};
  trainer = std::make_shared<DistributedOptimizer<optim::SGD>>(
      fixture.strategy.optimizer<optim::SGD>(*shared_net, groups, optim::SGDOptions(0.1)));
  const torch::Tensor first = shared_net->variable("fc1.weight").value().detach().clone();
  const torch::Tensor second = shared_net->variable("fc2.weight").value().detach().clone();
  const Batch batch = batches(1)[0];
  fixture.coordinator.schedule<net_step>(batch.x, batch.y);
  fixture.coordinator.join();
  CHECK_FALSE(shared_net->variable("fc1.weight").value().equal(first));
  CHECK(shared_net->variable("fc2.weight").value().equal(second));
}

TEST_CASE("an optimizer that one of its groups cannot have leaves the others their variables",
          "[strategy][unit]") {
  ModuleFixture fixture;
  shared_net = fixture.strategy.distribute(Net());
  const ServerOptimizer other(optim::SGDOptions(1), {shared_net->variable("fc1.bias")});
  const std::vector<ParameterGroup<optim::SGDOptions>> groups{{{"fc2"}, optim::SGDOptions(0.1)}};

  CHECK(throws(ErrorCode::kFailedPrecondition, "has an optimizer already", [&] {
    (void)fixture.strategy.optimizer<optim::SGD>(*shared_net, groups, optim::SGDOptions(0.1));
  }));

  CHECK(ServerOptimizer(optim::SGDOptions(1), {shared_net->variable("fc2.bias")}).valid());
}

}  // namespace
}  // namespace muster
