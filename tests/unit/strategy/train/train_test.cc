// Training over replicas is training in one process.
#include <cmath>

#include "device/arena.h"
#include "strategy/train/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/train/nets.h"

namespace muster::testing {
namespace {

constexpr std::int64_t kRows = 12;
constexpr int kSteps = 30;

// One process: forward, mean loss of the batch, backward, update.
double PlainStep(NetImpl& net, torch::optim::Optimizer& optimizer, const Batch& batch) {
  optimizer.zero_grad();
  const torch::Tensor loss = squares(net.forward(batch.x), batch.y).sum() / batch.x.size(0);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

template <class Torch>
double Step(Strategy& strategy, const DistributedModule<NetImpl>& net,
            const DistributedOptimizer<Torch>& optimizer, const Batch& batch) {
  const std::int64_t rows = batch.x.size(0) / strategy.num_replicas_in_sync();
  const auto losses = strategy.run([&] {
    const Batch mine = batch.part(rows * replica_id(), rows);
    optimizer.zero_grad();
    const torch::Tensor loss = compute_average_loss(squares(net->forward(mine.x), mine.y));
    loss.backward();
    optimizer.step();
    return loss.detach();
  });
  return strategy.reduce(ReduceOp::kSum, losses).template item<double>();
}

template <class Torch, class Options>
void CheckTrains(const std::string& what, const Options& options) {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(what, name);
    const Net original = float64_net();
    const auto plain = clone(original);
    Torch plain_optimizer(plain->parameters(), options);
    const auto scope = strategy->scope();
    const auto net = strategy->distribute(original);
    const auto optimizer = strategy->template optimizer<Torch>(net, options);

    double most = 0;
    for (int step = 0; step < kSteps; ++step) {
      const Batch batch = float64_batch(step, kRows);
      const double expected = PlainStep(*plain, plain_optimizer, batch);
      most = std::max(most, std::abs(Step(*strategy, net, optimizer, batch) - expected));
    }

    CHECK(most < 1e-9);
    CHECK(difference(*net.copy(0), *plain) < 1e-9);
    CHECK(difference(*net.copy(0), *clone(float64_net())) > 1e-3);
    for (int r = 1; r < net.size(); ++r) CHECK(difference(*net.copy(r), *net.copy(0)) == 0);
  }
}

TEST_CASE("after zero_grad() a parameter without a gradient is left alone by Adam's momentum",
          "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto net = strategy->distribute(float64_net());
    const auto optimizer = strategy->optimizer<torch::optim::Adam>(net, 0.1);
    const auto step = [&](const std::function<torch::Tensor()>& loss) {
      strategy->run([&] {
        optimizer.zero_grad();
        loss().backward();
        optimizer.step();
      });
      return std::pair(net.copy(0)->first->weight.detach().clone(),
                       net.copy(0)->second->bias.detach().clone());
    };
    const auto [weight, bias] =
        step([&] { return net->forward(torch::ones({2, 6}, torch::kFloat64)).sum(); });

    const auto [same_weight, other_bias] = step([&] { return net->second->bias.sum(); });

    CHECK(same_weight.equal(weight));
    CHECK_FALSE(other_bias.equal(bias));
  }
}

TEST_CASE("gradient descent over replicas is gradient descent in one process", "[strategy][unit]") {
  CheckTrains<torch::optim::SGD>("sgd", torch::optim::SGDOptions(0.05));
  CheckTrains<torch::optim::SGD>("momentum", torch::optim::SGDOptions(0.02).momentum(0.9));
}

TEST_CASE("adaptive optimizers over replicas are what they are in one process",
          "[strategy][unit]") {
  CheckTrains<torch::optim::Adam>("adam", torch::optim::AdamOptions(0.01));
  CheckTrains<torch::optim::AdamW>("adamw", torch::optim::AdamWOptions(0.01));
  CheckTrains<torch::optim::Adagrad>("adagrad", torch::optim::AdagradOptions(0.05));
  CheckTrains<torch::optim::RMSprop>("rmsprop", torch::optim::RMSpropOptions(0.005).momentum(0.5));
}

TEST_CASE("(x w - 1)^2 becomes smaller in ten steps under every strategy", "[spec][ONE-08]") {
  struct ScaleImpl : torch::nn::Cloneable<ScaleImpl> {
    ScaleImpl() { reset(); }
    void reset() override { w = register_parameter("w", torch::full({1}, 2.0)); }
    torch::Tensor w;
  };
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto scope = strategy->scope();
    const auto net = strategy->distribute(std::make_shared<ScaleImpl>());
    const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, 0.2);
    const auto step = [&] {
      optimizer.zero_grad();
      const torch::Tensor error = (net->w * 1.0 - 1.0).square();
      compute_average_loss(error).backward();
      optimizer.step();
      return error.item<float>();
    };

    std::vector<float> errors;
    for (int i = 0; i < 10; ++i) errors.push_back(strategy->run(step)[0]);

    CHECK(errors.front() == Approx(1.0));
    // Each step multiplies w - 1 by 1 - 2 * 0.2.
    CHECK(errors.back() == Approx(std::pow(0.6, 18)).epsilon(1e-3));
    const auto values = strategy->local_results(net.variable("w"));
    for (const Variable& component : values) CHECK(component.value().equal(values[0].value()));
  }
}

TEST_CASE("outside any scope a distributed module trains as a plain one", "[strategy][unit]") {
  const Net original = float64_net();
  const auto plain = clone(original);
  torch::optim::Adam plain_optimizer(plain->parameters(), 0.01);
  Strategy& strategy = default_strategy();
  const auto net = strategy.distribute(original);
  const auto optimizer = strategy.optimizer<torch::optim::Adam>(net, 0.01);

  for (int i = 0; i < 5; ++i) {
    const Batch batch = float64_batch(i, kRows);
    (void)PlainStep(*plain, plain_optimizer, batch);
    optimizer.zero_grad();
    compute_average_loss(squares(net->forward(batch.x), batch.y)).backward();
    optimizer.step();
  }

  CHECK(net.copy(0) == original.ptr());
  CHECK(difference(*original, *plain) == 0);
  CHECK(net.variable("first.weight").value().is_same(original->first->weight));
}

TEST_CASE("gradients are not summed when the optimizer is told so", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto scope = strategy.scope();
  const auto net = strategy.distribute(float64_net());
  const auto optimizer = strategy.optimizer<torch::optim::SGD>(
      net, 1.0, OptimizerOptions{.all_reduce_gradients = false});
  const torch::Tensor before = net.copy(0)->second->bias.detach().clone();

  strategy.run([&] {
    optimizer.zero_grad();
    (net->second->bias.sum() * (replica_id() + 1)).backward();
    optimizer.step();
  });

  CHECK(net.copy(0)->second->bias.equal(before - 1));
  CHECK(net.copy(1)->second->bias.equal(before - 2));
}

TEST_CASE("gradients can be summed first, changed, and then applied", "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto scope = strategy->scope();
    const auto net = strategy->distribute(float64_net());
    const auto optimizer = strategy->optimizer<torch::optim::SGD>(
        net, 1.0, OptimizerOptions{.all_reduce_gradients = false});
    const torch::Tensor before = net.copy(0)->second->bias.detach().clone();
    const int n = net.size();

    strategy->run([&] {
      optimizer.zero_grad();
      (net->second->bias.sum() * (replica_id() + 1)).backward();
      optimizer.reduce_gradients();
      net->second->bias.mutable_grad() /= 100;
      optimizer.step();
    });

    const torch::Tensor after = before - n * (n + 1) / 2 / 100.0;
    for (int r = 0; r < n; ++r) CHECK(net.copy(r)->second->bias.allclose(after, 0, 1e-12));
  }
}

TEST_CASE("a replica without examples counts as nothing", "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    if (strategy->num_replicas_in_sync() == 1) continue;
    CAPTURE(name);
    const Net original = float64_net();
    const auto plain = clone(original);
    torch::optim::Adam plain_optimizer(plain->parameters(), 0.01);
    const auto scope = strategy->scope();
    const auto net = strategy->distribute(original);
    const auto optimizer = strategy->optimizer<torch::optim::Adam>(net, 0.01);

    for (int i = 0; i < 3; ++i) {
      const Batch batch = float64_batch(i, 4);
      (void)PlainStep(*plain, plain_optimizer, batch);
      strategy->run([&] {
        optimizer.zero_grad();
        if (replica_id() == 1) {
          compute_average_loss(squares(net->forward(batch.x), batch.y), 4).backward();
        }
        optimizer.step();
      });
    }

    CHECK(difference(*net.copy(0), *plain) < 1e-12);
    CHECK(difference(*net.copy(1), *net.copy(0)) == 0);
  }
}

TEST_CASE("gradients gather over several backward passes", "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto scope = strategy->scope();
    const auto net = strategy->distribute(float64_net());
    const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, 1.0);
    const torch::Tensor before = net.copy(0)->second->bias.detach().clone();
    const int n = net.size();

    strategy->run([&] {
      optimizer.zero_grad();
      net->second->bias.sum().backward();
      optimizer.step();  // the gradient 1 of each replica stays
      net->second->bias.sum().backward();
      optimizer.step();  // now it is 2
    });

    CHECK(net.copy(0)->second->bias.allclose(before - 3 * n, 0, 1e-12));
  }
}

TEST_CASE("step() outside run() applies the gradients of all copies", "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto scope = strategy->scope();
    const auto net = strategy->distribute(float64_net());
    const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, 1.0);
    const torch::Tensor before = net.copy(0)->second->bias.detach().clone();

    strategy->run([&] { net->second->bias.sum().backward(); });
    optimizer.step();

    CHECK(net.copy(net.size() - 1)->second->bias.allclose(before - net.size(), 0, 1e-12));
  }
}

TEST_CASE("the state of mirrored optimizers is on each device, the central one's on its own",
          "[strategy][unit]") {
  const auto device_of_state = [](torch::optim::Adam& optimizer) {
    auto& state = static_cast<torch::optim::AdamParamState&>(*optimizer.state().begin()->second);
    return device::Arena::IndexOf(state.exp_avg().data_ptr());
  };
  MirroredStrategy mirrored({"CPU:1", "CPU:3"});
  CentralStorageStrategy central({"CPU:1", "CPU:2"}, "CPU:5");
  const auto mirrored_net = mirrored.distribute(float64_net());
  const auto central_net = central.distribute(float64_net());
  const auto a = mirrored.optimizer<torch::optim::Adam>(mirrored_net, 0.01);
  const auto b = central.optimizer<torch::optim::Adam>(central_net, 0.01);

  (void)Step(mirrored, mirrored_net, a, float64_batch(0, kRows));
  (void)Step(central, central_net, b, float64_batch(0, kRows));

  CHECK(device_of_state(a.torch_optimizer(0)) == 1);
  CHECK(device_of_state(a.torch_optimizer(1)) == 3);
  CHECK(&b.torch_optimizer(0) == &b.torch_optimizer(1));
  CHECK(device_of_state(b.torch_optimizer()) == 5);
}

template <class Torch, class Options>
void CheckResumes(const Options& options) {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto scope = strategy->scope();
    const auto net = strategy->distribute(float64_net());
    const auto optimizer = strategy->template optimizer<Torch>(net, options);
    for (int i = 0; i < 5; ++i) (void)Step(*strategy, net, optimizer, float64_batch(i, kRows));
    const auto saved = optimizer.state();
    const auto restored = strategy->distribute(Net(clone(Net(net.copy(0)))));
    const auto resumed = strategy->template optimizer<Torch>(restored, options);
    CHECK(saved.contains("first.weight/slot/step") == !std::is_same_v<Torch, torch::optim::SGD>);

    resumed.load_state(saved);
    for (int i = 5; i < 10; ++i) {
      (void)Step(*strategy, net, optimizer, float64_batch(i, kRows));
      (void)Step(*strategy, restored, resumed, float64_batch(i, kRows));
    }

    CHECK(difference(*net.copy(0), *restored.copy(0)) == 0);
    CHECK(difference(*restored.copy(0), *restored.copy(restored.size() - 1)) == 0);
  }
}

TEST_CASE("an optimizer's state goes on from where it was saved", "[strategy][unit]") {
  CheckResumes<torch::optim::SGD>(torch::optim::SGDOptions(0.02).momentum(0.9));
  CheckResumes<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
  CheckResumes<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1));
  CheckResumes<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.005).centered(true));
}

TEST_CASE("a module is saved under one strategy and goes on under another", "[strategy][unit]") {
  const TempFolder folder;
  const auto tracked = [](const DistributedModule<NetImpl>& net) {
    Checkpoint checkpoint;
    for (const Variable& variable : net.parameters()) checkpoint.track(variable.name(), variable);
    return checkpoint;
  };
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto net = two.distribute(float64_net());
  const auto optimizer = two.optimizer<torch::optim::SGD>(net, 0.1);
  for (int i = 0; i < 3; ++i) (void)Step(two, net, optimizer, float64_batch(i, kRows));
  tracked(net).save(folder / "step-3", 3);

  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto other = strategy->distribute(float64_net());
    Checkpoint checkpoint = tracked(other);

    (void)checkpoint.restore(folder / "step-3").assert_consumed();

    for (int r = 0; r < other.size(); ++r) CHECK(difference(*other.copy(r), *net.copy(0)) == 0);
  }
}

TEST_CASE("state that does not belong to the optimizer is refused whole", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());
  const auto optimizer = strategy.optimizer<torch::optim::Adam>(net, 0.01);
  (void)Step(strategy, net, optimizer, float64_batch(0, kRows));
  const auto good = optimizer.state();
  auto shape = good;
  shape["first.weight/slot/exp_avg"] = torch::zeros({2});
  auto missing = good;
  missing.erase("second.bias/slot/exp_avg_sq");
  auto extra = good;
  extra["third.bias/slot/exp_avg"] = torch::zeros({3});

  const auto refused = [&](const std::string& name, const auto& state) {
    return throws(ErrorCode::kInvalidArgument, name, [&] { optimizer.load_state(state); });
  };
  CHECK(refused("first.weight/slot/exp_avg", shape));
  CHECK(refused("second.bias/slot/exp_avg_sq", missing));
  CHECK(refused("third.bias/slot/exp_avg", extra));
  const auto kept = optimizer.state();
  CHECK(kept.size() == good.size());
  for (const auto& [name, value] : good) CHECK(kept.at(name).equal(value));
}

TEST_CASE("the learning rate changes for all replicas", "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto net = strategy->distribute(float64_net());
    const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, 0.5);
    CHECK(optimizer.learning_rate() == 0.5);

    optimizer.set_learning_rate(0.25);
    const auto outside = strategy->run([&] { return optimizer.learning_rate(); });
    strategy->run([&] { optimizer.set_learning_rate(0.125); });

    for (const double rate : outside.values()) CHECK(rate == 0.25);
    CHECK(optimizer.learning_rate() == 0.125);
    for (int r = 0; r < net.size(); ++r) {
      CHECK(optimizer.torch_optimizer(r).param_groups()[0].options().get_lr() == 0.125);
    }
  }
}

TEST_CASE("a learning rate that would spoil the weights is refused", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());
  CHECK(throws(ErrorCode::kInvalidArgument, "a learning rate of inf",
               [&] { (void)strategy.optimizer<torch::optim::Adam>(net, INFINITY); }));
  const auto optimizer = strategy.optimizer<torch::optim::SGD>(net, 0.5);
  for (const double rate : {-1.0, double{NAN}, double{INFINITY}, 1e39}) {
    INFO(rate);
    CHECK(throws(ErrorCode::kInvalidArgument, "a learning rate of",
                 [&] { optimizer.set_learning_rate(rate); }));
  }
  CHECK(optimizer.learning_rate() == 0.5);
  optimizer.set_learning_rate(0);
  CHECK(optimizer.learning_rate() == 0);
}

TEST_CASE("an optimizer that asks for the gradient several times agrees with one process",
          "[strategy][unit]") {
  const Batch batch = float64_batch(0, kRows);
  const auto options = torch::optim::LBFGSOptions(0.5).max_iter(8).line_search_fn("strong_wolfe");
  const Net original = float64_net();
  const auto plain = clone(original);
  torch::optim::LBFGS plain_optimizer(plain->parameters(), options);
  const double expected = plain_optimizer
                              .step([&] {
                                plain_optimizer.zero_grad();
                                const auto loss =
                                    squares(plain->forward(batch.x), batch.y).sum() / kRows;
                                loss.backward();
                                return loss;
                              })
                              .item<double>();
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(original);
  const auto optimizer = strategy.optimizer<torch::optim::LBFGS>(net, options);

  const auto losses = strategy.run([&] {
    const Batch mine = batch.part(6 * replica_id(), 6);
    return optimizer.step([&] {
      optimizer.zero_grad();
      const auto loss = compute_average_loss(squares(net->forward(mine.x), mine.y));
      loss.backward();
      return loss;
    });
  });

  CHECK(losses[0].item<double>() == Approx(expected).epsilon(1e-9));
  CHECK(difference(*net.copy(0), *plain) < 1e-8);
  CHECK(difference(*net.copy(0), *net.copy(1)) == 0);
  CentralStorageStrategy central({"CPU:0", "CPU:1"});
  const auto shared = central.distribute(float64_net());
  const auto asks = central.optimizer<torch::optim::LBFGS>(shared, options);
  CHECK(throws(ErrorCode::kUnimplemented, "LBFGS",
               [&] { central.run([&] { (void)asks.step([&] { return torch::zeros({}); }); }); }));
}

TEST_CASE("sparse gradients of embeddings are summed by rows", "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    torch::manual_seed(3);
    const torch::nn::Embedding original(torch::nn::EmbeddingOptions(10, 2).sparse(true));
    const torch::Tensor before = original->weight.detach().clone();
    const auto net = strategy->distribute(original);
    const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, 1.0);

    strategy->run([&] {
      optimizer.zero_grad();
      if (replica_id() != 2) {
        net->forward(torch::tensor({1, replica_id() + 4})).sum().backward();
      }
      optimizer.step();
    });

    torch::Tensor expected = before.clone();
    for (int r = 0; r < net.size(); ++r) {
      if (r == 2) continue;
      expected[1] -= 1;
      expected[r + 4] -= 1;
    }
    for (int r = 0; r < net.size(); ++r) CHECK(net.copy(r)->weight.allclose(expected));
  }
}

TEST_CASE("an optimizer that takes no sparse gradients says so", "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const torch::nn::Embedding original(torch::nn::EmbeddingOptions(10, 2).sparse(true));
    const torch::Tensor before = original->weight.detach().clone();
    const auto net = strategy->distribute(original);
    const auto optimizer = strategy->optimizer<torch::optim::Adam>(net, 0.1);

    const auto step = [&] {
      net->forward(torch::tensor({1})).sum().backward();
      optimizer.step();
    };
    CHECK_THROWS_WITH(strategy->run(step),
                      Catch::Contains("INVALID_ARGUMENT: step() of") && Catch::Contains("Adam"));
    const auto loss = [&] {
      const torch::Tensor sum = net->forward(torch::tensor({1})).sum();
      sum.backward();
      return sum;
    };
    CHECK_THROWS_WITH(strategy->run([&] { (void)optimizer.step(loss); }),
                      Catch::Contains("INVALID_ARGUMENT: step() of") && Catch::Contains("Adam"));

    for (int r = 0; r < net.size(); ++r) {
      CHECK(net.copy(r)->weight.equal(before));
      CHECK(net.copy(r)->weight.grad().is_sparse());
    }
    CHECK(optimizer.state().empty());
  }
}

TEST_CASE("what an optimizer cannot work with is refused by name", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  MirroredStrategy other({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());
  const auto frozen = strategy.distribute(torch::nn::Tanh());
  const auto optimizer = strategy.optimizer<torch::optim::SGD>(net, 0.1);

  CHECK(throws(ErrorCode::kInvalidArgument, "NetImpl",
               [&] { (void)other.optimizer<torch::optim::SGD>(net, 0.1); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "no parameter",
               [&] { (void)strategy.optimizer<torch::optim::SGD>(frozen, 0.1); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "learning rate",
               [&] { (void)strategy.optimizer<torch::optim::SGD>(net, -1.0); }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "inside run()",
               [&] { (void)optimizer.step([] { return torch::zeros({}); }); }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "inside run()",
               [&] { optimizer.reduce_gradients(); }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "replica", [&] {
    strategy.run([&] {
      if (replica_id() == 0) optimizer.step();
    });
  }));
}

}  // namespace
}  // namespace muster::testing
