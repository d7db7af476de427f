// Copies of modules: where they lie, what they share, what reaches them.
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/arena.h"
#include "strategy/values/device_of.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/train/nets.h"

namespace muster::testing {
namespace {

int arena_of(const torch::Tensor& tensor) { return device::Arena::IndexOf(tensor.data_ptr()); }

TEST_CASE("each replica sees its own copy, in its device's memory", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:2", "CPU:1"});
  const Net original = float64_net();
  const torch::Tensor value = original->first->weight.detach().clone();

  const auto net = strategy.distribute(original);
  const auto seen = strategy.run([&] { return net->first->weight; });

  CHECK(net.size() == 2);
  CHECK(net.copy(0) == original.ptr());
  CHECK(net->first->weight.is_same(original->first->weight));
  CHECK(seen[0].is_same(original->first->weight));
  CHECK(seen[1].is_same(net.copy(1)->first->weight));
  CHECK_FALSE(seen[1].is_same(seen[0]));
  CHECK(seen[0].equal(value));
  CHECK(seen[1].equal(value));
  for (int r = 0; r < 2; ++r) {
    for (const torch::Tensor& parameter : net.copy(r)->parameters()) {
      CHECK(arena_of(parameter) == (r == 0 ? 2 : 1));
      CHECK(parameter.requires_grad());
      CHECK(parameter.is_leaf());
    }
  }
  CHECK(throws(ErrorCode::kOutOfRange, "copy 2", [&] { (void)net.copy(2); }));
}

TEST_CASE("parameters are ON_WRITE variables whose components are the copies' leaves",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());
  const Variable bias = net.variable("second.bias");

  strategy.run([&] { (bias.value().sum() * (replica_id() + 1)).backward(); });

  CHECK(net.parameters().size() == 4);
  CHECK(bias.kind() == Variable::Kind::kMirrored);
  CHECK(bias.synchronization() == VariableSynchronization::kOnWrite);
  CHECK(bias.aggregation() == VariableAggregation::kMean);
  CHECK(bias.trainable());
  CHECK(bias.dtype() == torch::kFloat64);
  CHECK(bias.component(1).name() == "second.bias/replica_1");
  CHECK(net.copy(0)->second->bias.grad().equal(torch::full({3}, 1.0, torch::kFloat64)));
  CHECK(net.copy(1)->second->bias.grad().equal(torch::full({3}, 2.0, torch::kFloat64)));
  const auto own = strategy.run([&] { return int{bias.value().is_same(net->second->bias)}; });
  CHECK(own.values() == std::vector<int>{1, 1});
  CHECK(throws(ErrorCode::kNotFound, "third", [&] { (void)net.variable("third"); }));
}

TEST_CASE("writing a module's variable changes every copy", "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto scope = strategy->scope();
    const auto net = strategy->distribute(float64_net());
    const Variable bias = net.variable("second.bias");
    const torch::Tensor before = bias.value();

    bias.assign(torch::tensor({1.0, 2.0, 3.0}, torch::kFloat64));
    bias.assign_add(1);

    const auto expected = torch::tensor({2.0, 3.0, 4.0}, torch::kFloat64);
    for (int r = 0; r < net.size(); ++r) CHECK(net.copy(r)->second->bias.equal(expected));
    CHECK(bias.value().equal(expected));
    CHECK_FALSE(before.equal(expected));
  }
}

TEST_CASE("what a replica writes into its parameters itself is read after the run",
          "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto net = strategy->distribute(float64_net());
    const Variable bias = net.variable("second.bias");
    const torch::Tensor before = bias.value();
    CHECK_FALSE(before.equal(torch::full({3}, 4.5, torch::kFloat64)));

    strategy->run([&] {
      const torch::NoGradGuard no_grad;
      if (bias.kind() != Variable::Kind::kAggregating || replica_id() == 1) {
        net->second->bias.fill_(4.5);
      }
    });

    CHECK(bias.value().equal(torch::full({3}, 4.5, torch::kFloat64)));
  }
}

TEST_CASE("central storage: one value on the parameter device, a leaf over it for each replica",
          "[strategy][unit]") {
  CentralStorageStrategy strategy({"CPU:1", "CPU:2"}, "CPU:3");
  const auto net = strategy.distribute(float64_net());
  const torch::Tensor a = net.copy(0)->first->weight;
  const torch::Tensor b = net.copy(1)->first->weight;

  strategy.run([&] { (net->first->weight.sum() * (replica_id() + 1)).backward(); });

  CHECK(net.variable("first.weight").kind() == Variable::Kind::kAggregating);
  CHECK(net.variable("first.weight").size() == 1);
  CHECK(a.data_ptr() == b.data_ptr());
  CHECK(arena_of(a) == 3);
  CHECK_FALSE(a.is_same(b));
  CHECK(a.grad()[0][0].item<double>() == 1);
  CHECK(b.grad()[0][0].item<double>() == 2);
  CHECK(arena_of(b.grad()) == 2);
}

struct NormedImpl : torch::nn::Cloneable<NormedImpl> {
  NormedImpl() { reset(); }
  void reset() override { norm = register_module("norm", torch::nn::BatchNorm1d(2)); }
  torch::Tensor forward(const torch::Tensor& x) { return norm->forward(x); }
  torch::nn::BatchNorm1d norm = nullptr;
};

TEST_CASE("floating buffers are read as the mean, integer ones from the first replica",
          "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto scope = strategy->scope();
    const auto net = strategy->distribute(std::make_shared<NormedImpl>());
    const Variable mean = net.variable("norm.running_mean");
    const Variable count = net.variable("norm.num_batches_tracked");
    const int n = net.size();

    strategy->run([&] { (void)net->forward(torch::full({4, 2}, 10.0 * (replica_id() + 1))); });

    CHECK(mean.synchronization() == VariableSynchronization::kOnRead);
    CHECK(mean.aggregation() == VariableAggregation::kMean);
    CHECK(count.aggregation() == VariableAggregation::kOnlyFirstReplica);
    CHECK_FALSE(mean.trainable());
    // Momentum 0.1: replica r holds r + 1.
    for (int r = 0; r < n; ++r) {
      CHECK(net.copy(r)->norm->running_mean[0].item<float>() == Approx(r + 1));
      CHECK(mean.component(r).value()[0].item<float>() == Approx(r + 1));
    }
    CHECK(mean.value()[1].item<float>() == Approx((n + 1) / 2.0));
    CHECK(count.value().item<std::int64_t>() == 1);

    mean.assign(torch::tensor({5.0F, 6.0F}));
    CHECK(net.copy(n - 1)->norm->running_mean.equal(torch::tensor({5.0F, 6.0F})));
  }
}

// Two layers that share their weight, by registering it again and by a shared submodule.
struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
  TiedImpl() { reset(); }
  void reset() override {
    inner = register_module("inner", torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
    again = register_module("again", inner);
    weight = register_parameter("weight", inner->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return again->forward(inner->forward(x)).matmul(weight);
  }
  torch::nn::Linear inner = nullptr;
  torch::nn::Linear again = nullptr;
  torch::Tensor weight;
};

TEST_CASE("tied weights stay tied: one variable, one value, one gradient, one update",
          "[strategy][unit]") {
  const torch::Tensor start = torch::tensor({{0.5, -0.25}, {0.75, 1.0}}, torch::kFloat64);
  const torch::Tensor x = torch::tensor({{1.0, 2.0}}, torch::kFloat64);
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto original = std::make_shared<TiedImpl>();
    original->to(torch::kFloat64);
    {
      const torch::NoGradGuard no_grad;
      original->weight.copy_(start);
    }
    torch::Tensor plain = start.clone().set_requires_grad(true);
    torch::optim::Adam plain_optimizer({plain}, 0.1);
    const auto net = strategy->distribute(original);
    const auto optimizer = strategy->optimizer<torch::optim::Adam>(net, 0.1);
    CHECK(net.parameters().size() == 1);

    for (int step = 0; step < 4; ++step) {
      plain_optimizer.zero_grad();
      x.matmul(plain.t()).matmul(plain.t()).matmul(plain).sum().backward();
      plain_optimizer.step();
      strategy->run([&] {
        optimizer.zero_grad();
        compute_average_loss(net->forward(x).sum(1)).backward();
        optimizer.step();
      });
    }

    for (int r = 0; r < net.size(); ++r) {
      const auto copy = net.copy(r);
      CHECK(copy->weight.allclose(plain, 0, 1e-12));
      CHECK(copy->inner->weight.data_ptr() == copy->weight.data_ptr());
      CHECK(copy->again->weight.data_ptr() == copy->weight.data_ptr());
    }
    torch::Tensor whole = plain.detach().clone().set_requires_grad(true);
    x.matmul(whole.t()).matmul(whole.t()).matmul(whole).sum().backward();
    const auto gradients = strategy->run([&] {
      net.zero_grad();
      net->forward(x).sum().backward();
      return net.parameters()[0].value().grad();
    });
    for (const torch::Tensor& gradient : gradients.values()) {
      CHECK(gradient.allclose(whole.grad()));
    }
  }
}

// Registers what it is told to.
struct ToldImpl : torch::nn::Cloneable<ToldImpl> {
  using Told = std::function<void(torch::nn::Module&)>;
  explicit ToldImpl(Told registers) : told(std::move(registers)) { told(*this); }
  void reset() override { told(*this); }
  Told told;
};

TEST_CASE("parameters and buffers that overlap in memory are refused where there are copies",
          "[strategy][unit]") {
  const std::vector<std::pair<std::string, ToldImpl::Told>> overlapping = {
      {"parameter a and parameter b",
       [](torch::nn::Module& module) {
         const torch::Tensor a = module.register_parameter("a", torch::ones({2, 2}));
         module.register_parameter("b", a.detach().t());
       }},
      {"parameter a and buffer b",
       [](torch::nn::Module& module) {
         const torch::Tensor a = module.register_parameter("a", torch::ones({4}));
         module.register_buffer("b", a.detach());
       }},
      {"buffer a and buffer b",
       [](torch::nn::Module& module) {
         const torch::Tensor whole = torch::ones({5});
         module.register_buffer("b", whole.narrow(0, 2, 3));
         module.register_buffer("a", whole.narrow(0, 0, 3));
       }},
      {"parameter a and buffer c", [](torch::nn::Module& module) {
         const torch::Tensor whole = torch::ones({4, 4}, torch::kFloat64);
         module.register_parameter("a", whole.narrow(1, 0, 2));
         module.register_parameter("b", whole.narrow(1, 2, 2));
         module.register_buffer("c", whole.view(torch::kInt).narrow(1, 3, 1));
       }}};
  for (const auto& [name, strategy] : all_strategies()) {
    for (const auto& [both, told] : overlapping) {
      CAPTURE(name, both);
      const auto distribute = [&, &registers = told, &into = *strategy] {
        (void)into.distribute(std::make_shared<ToldImpl>(registers));
      };

      if (strategy->num_local_replicas() > 1) {
        CHECK(throws(ErrorCode::kInvalidArgument, both + " of module", distribute));
      } else {
        CHECK(code_of(distribute) == ErrorCode::kOk);
      }
    }
  }
}

TEST_CASE("parameters that lie side by side or in turns in one storage are distributed",
          "[strategy][unit]") {
  // As cuDNN has them.
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2));
  const torch::Tensor flat = torch::arange(1000.0F);
  std::int64_t used = 0;
  for (torch::Tensor& parameter : lstm->parameters()) {
    const std::int64_t size = parameter.numel();
    parameter.set_data(flat.narrow(0, used, size).view(parameter.sizes()));
    used += size;
  }
  const auto columns = std::make_shared<ToldImpl>([](torch::nn::Module& module) {
    const torch::Tensor whole = torch::arange(24.0F).reshape({4, 6});
    for (int i = 0; i < 3; ++i) {
      module.register_parameter("w" + std::to_string(i), whole.narrow(1, 2 * i, 2));
    }
  });
  MirroredStrategy strategy({"CPU:0", "CPU:1"});

  const auto layers = strategy.distribute(lstm);
  const auto parts = strategy.distribute(columns);

  CHECK(layers.parameters().size() == 8);
  CHECK(difference(*layers.copy(0), *layers.copy(1)) == 0);
  CHECK(parts.parameters().size() == 3);
  CHECK(parts.copy(1)->parameters()[2].equal(
      torch::tensor({{4.0F, 5.0F}, {10.0F, 11.0F}, {16.0F, 17.0F}, {22.0F, 23.0F}})));
}

TEST_CASE("train, eval and zero_grad outside run() reach all copies", "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto net = strategy->distribute(float64_net());
    const auto modes = [&] {
      std::vector<bool> all;
      for (int r = 0; r < net.size(); ++r) {
        all.push_back(net.copy(r)->is_training() && net.copy(r)->second->is_training());
        all.push_back(net.copy(r)->first->is_training());
      }
      return all;
    };
    const auto spread = [&](bool whole, bool first) {
      std::vector<bool> all;
      for (int r = 0; r < net.size(); ++r) all.insert(all.end(), {whole, first});
      return all;
    };

    net->eval();
    CHECK(modes() == spread(false, false));
    net->train();
    net->first->eval();
    CHECK(modes() == spread(true, false));
    net.train();
    CHECK(modes() == spread(true, true));
    net.eval();
    CHECK(modes() == spread(false, false));

    const auto gradients = [&] {
      double sum = 0;
      for (int r = 0; r < net.size(); ++r) {
        const torch::Tensor& gradient = net.copy(r)->second->bias.grad();
        if (gradient.defined()) sum += gradient.sum().item<double>();
      }
      return sum;
    };
    const auto backward = [&] { net->second->bias.sum().backward(); };
    strategy->run(backward);
    CHECK(gradients() == 3 * net.size());
    (void)net->forward(torch::zeros({1, 6}, torch::kFloat64));
    CHECK(gradients() == 3 * net.size());
    net->zero_grad();
    CHECK(gradients() == 0);
    strategy->run(backward);
    net.zero_grad();
    CHECK(gradients() == 0);
  }
}

TEST_CASE("a module whose type is changed afterwards is refused at its next use",
          "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto net = strategy->distribute(float64_net());
    const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, 0.1);
    const auto refused = [&](const std::function<void()>& use) {
      return throws(ErrorCode::kFailedPrecondition, "first.weight", use);
    };

    net->to(torch::kFloat32);

    CHECK(refused([&] { (void)net->first; }));
    CHECK(refused([&] { strategy->run([&] { (void)net->first; }); }));
    CHECK(refused([&] { strategy->run([&] { optimizer.step(); }); }));
    CHECK(refused([&] { (void)net.variable("first.weight").value(); }));
  }
}

TEST_CASE("central storage: a parameter that no longer shares the value is refused",
          "[strategy][unit]") {
  CentralStorageStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());

  net.copy(1)->to(torch::kFloat32);
  net.copy(1)->to(torch::kFloat64);

  CHECK(throws(ErrorCode::kFailedPrecondition, "first.weight",
               [&] { strategy.run([&] { (void)net->first; }); }));
}

TEST_CASE("modules that cannot be copied are refused by name", "[strategy][unit]") {
  struct Plain : torch::nn::Module {};
  // Its layer is registered where a copy does not come by.
  struct InConstructor : torch::nn::Cloneable<InConstructor> {
    InConstructor() { layer = register_module("layer", torch::nn::Linear(1, 1)); }
    void reset() override {}
    torch::nn::Linear layer = nullptr;
  };
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    CHECK(throws(ErrorCode::kInvalidArgument, "Plain",
                 [&] { (void)strategy->distribute(std::make_shared<Plain>()); }));
    CHECK(throws(ErrorCode::kInvalidArgument, "InConstructor",
                 [&] { (void)strategy->distribute(std::make_shared<InConstructor>()); }));
    CHECK(throws(ErrorCode::kInvalidArgument, "no module",
                 [&] { (void)strategy->distribute(std::shared_ptr<NetImpl>()); }));
  }
}

TEST_CASE("modules are distributed outside run(), and used by their own strategy",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  MirroredStrategy other({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());

  CHECK(throws(ErrorCode::kFailedPrecondition, "distribute()",
               [&] { strategy.run([&] { (void)strategy.distribute(float64_net()); }); }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "NetImpl",
               [&] { other.run([&] { (void)net->first; }); }));
}

TEST_CASE("a module keeps what its user set: frozen parameters and modes of parts",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  Net original = float64_net();
  original->first->weight.set_requires_grad(false);
  original->second->eval();

  const auto net = strategy.distribute(original);

  CHECK_FALSE(net.copy(1)->first->weight.requires_grad());
  CHECK(net.copy(1)->first->bias.requires_grad());
  CHECK_FALSE(net.variable("first.weight").trainable());
  CHECK(net.copy(1)->is_training());
  CHECK_FALSE(net.copy(1)->second->is_training());
}

TEST_CASE("distributing a module takes none of the program's random numbers", "[strategy][unit]") {
  const Net original = float64_net();
  torch::manual_seed(11);
  const torch::Tensor expected = torch::rand({4});
  MirroredStrategy strategy({"CPU:0", "CPU:1"});

  torch::manual_seed(11);
  (void)strategy.distribute(original);

  CHECK(torch::rand({4}).equal(expected));
}

TEST_CASE("who reads a parameter while it is trained sees a whole value", "[strategy][unit]") {
  struct BigImpl : torch::nn::Cloneable<BigImpl> {
    BigImpl() { reset(); }
    void reset() override { w = register_parameter("w", torch::zeros({100'000})); }
    torch::Tensor w;
  };
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto net = strategy->distribute(std::make_shared<BigImpl>());
    const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, 1.0);
    const Variable w = net.variable("w");
    std::atomic<bool> stop = false;
    std::atomic<int> reads = 0;
    std::atomic<int> torn = 0;
    std::thread reader([&] {
      while (!stop) {
        const torch::Tensor value = w.value().detach();
        if (value.min().item<float>() != value.max().item<float>()) ++torn;
        ++reads;
      }
    });

    for (int step = 0; step < 20 || reads < 5; ++step) {
      strategy->run([&] {
        optimizer.zero_grad();
        net->w.sum().backward();
        optimizer.step();
      });
    }
    stop = true;
    reader.join();

    CHECK(torn == 0);
    CHECK(w.value().detach().min().item<float>() < 0);
  }
}

}  // namespace
}  // namespace muster::testing
