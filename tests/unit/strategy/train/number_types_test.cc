// Modules of other types than float32, and gradients of replicas that compute at the same time.
#include <atomic>

#include "tests/support/catch.h"
#include "tests/unit/strategy/train/nets.h"

namespace muster::testing {
namespace {

Net NetOf(torch::ScalarType type) {
  torch::manual_seed(7);
  Net net;
  net->to(type);
  return net;
}

TEST_CASE("a bfloat16 module trains, its copies equal", "[strategy][unit]") {
  const Batch wide = float64_batch(0, 12);
  const Batch batch{wide.x.to(torch::kBFloat16), wide.y.to(torch::kBFloat16)};
  const auto options = torch::optim::SGDOptions(0.03).momentum(0.5);
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto plain = clone(NetOf(torch::kBFloat16));
    torch::optim::SGD plain_optimizer(plain->parameters(), options);
    const auto net = strategy->distribute(NetOf(torch::kBFloat16));
    const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, options);
    const std::int64_t rows = 12 / net.size();

    std::vector<double> losses;
    for (int step = 0; step < 20; ++step) {
      plain_optimizer.zero_grad();
      (squares(plain->forward(batch.x), batch.y).sum() / 12).backward();
      plain_optimizer.step();
      const auto parts = strategy->run([&] {
        const Batch mine = batch.part(rows * replica_id(), rows);
        optimizer.zero_grad();
        const auto loss = compute_average_loss(squares(net->forward(mine.x), mine.y), 12);
        loss.backward();
        optimizer.step();
        return loss.detach();
      });
      losses.push_back(strategy->reduce(ReduceOp::kSum, parts).item<double>());
    }

    CHECK(losses.back() < 0.7 * losses.front());
    CHECK(net.variable("first.weight").dtype() == torch::kBFloat16);
    CHECK(difference(*net.copy(0), *net.copy(net.size() - 1)) == 0);
    if (net.size() == 1) CHECK(difference(*net.copy(0), *plain) == 0);
  }
}

TEST_CASE("gradients of 16 bits are summed in 32", "[strategy][unit]") {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    for (const auto& [name, strategy] : all_strategies()) {
      if (strategy->num_replicas_in_sync() < 3) continue;
      CAPTURE(name, torch::toString(type));
      // Added one after another in 16 bits, the ones would be lost.
      const float large = type == torch::kBFloat16 ? 256 : 2048;
      const auto net = strategy->distribute(NetOf(type));
      const auto optimizer = strategy->optimizer<torch::optim::SGD>(net, 1.0);
      net.variable("second.bias").assign(torch::zeros({3}, type));

      strategy->run([&] {
        torch::Tensor& gradient = net->second->bias.mutable_grad();
        gradient = torch::full({3}, replica_id() == 0 ? large : 1.0F, torch::dtype(type));
        optimizer.step();
      });

      const float exact = large + static_cast<float>(net.size() - 1);
      const auto expected = torch::full({3}, -exact).to(type);
      CHECK_FALSE(expected[0].item<float>() == -large);
      for (int r = 0; r < net.size(); ++r) CHECK(net.copy(r)->second->bias.equal(expected));
    }
  }
}

TEST_CASE("backward passes that run at the same time never mix their gradients",
          "[strategy][unit]") {
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto net = strategy->distribute(NetOf(torch::kFloat64));
    const Variable weight = net.variable("first.weight");
    std::atomic<int> wrong = 0;

    strategy->run([&] {
      const int r = replica_id();
      for (int i = 1; i <= 100; ++i) {
        net->zero_grad();
        // Half by the module, half by the variable.
        (net->first->weight.sum() * (r + 1)).backward();
        (weight.value().sum() * (i * 10)).backward();
        const double expected = r + 1 + i * 10;
        const torch::Tensor gradient = net->first->weight.grad();
        if (!gradient.eq(expected).all().item<bool>()) ++wrong;
      }
    });

    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace muster::testing
