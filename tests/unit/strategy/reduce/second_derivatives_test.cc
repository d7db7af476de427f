// Gradients of gradients through the collective calls of replicas.
#include <memory>
#include <tuple>
#include <vector>

#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/replicas.h"

namespace muster {
namespace {

using testing::cpus;
using testing::id;

// The gradient of `loss` of `x`, with a history.
torch::Tensor GradientOf(const torch::Tensor& loss, const torch::Tensor& x) {
  return torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
}

TEST_CASE("the gradient of a gradient goes through all_reduce", "[strategy][unit]") {
  const std::vector<std::shared_ptr<CrossDeviceOps>> all_ops = {
      std::make_shared<CollectiveAllReduce>(), std::make_shared<ReductionToOneDevice>(),
      std::make_shared<HierarchicalCopyAllReduce>(2)};
  for (const auto& ops : all_ops) {
    MirroredStrategy strategy(cpus(2, 0), ops);
    const auto seen = strategy.run([] {
      const torch::Tensor x = torch::ones({}, torch::requires_grad());
      const torch::Tensor y = replica_context().all_reduce(ReduceOp::kSum, x);
      const torch::Tensor first = GradientOf(y * y, x);
      (first * first).backward();
      return std::tuple(first.detach(), x.grad());
    });
    for (int r = 0; r < 2; ++r) {
      // The losses of both are (x0 + x1)^2: 4 (x0 + x1), and of both its squares 64 (x0 + x1).
      CHECK(std::get<0>(seen[r]).item<float>() == 8);
      CHECK(std::get<1>(seen[r]).item<float>() == 128);
    }
  }
}

TEST_CASE("third derivatives through a mean of several tensors", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto seen = strategy.run([] {
    const auto double_ones = torch::dtype(torch::kFloat64).requires_grad(true);
    const torch::Tensor x = torch::full({}, id() + 1.0, double_ones);
    const torch::Tensor z = torch::ones({2}, double_ones);
    const auto means = replica_context().all_reduce(
        ReduceOp::kMean, std::vector<torch::Tensor>{x, z, torch::tensor(id())});
    const torch::Tensor first = GradientOf(means[0].pow(4) + means[1].sum(), x);
    const torch::Tensor second = GradientOf(first, x);
    const torch::Tensor third = GradientOf(second, x);
    return std::vector<double>{first.item<double>(), second.item<double>(), third.item<double>()};
  });
  // With m = (x0 + x1) / 2 = 1.5, and each time half of what both replicas have.
  for (int r = 0; r < 2; ++r) {
    CHECK(seen[r] == std::vector<double>{4 * 1.5 * 1.5 * 1.5, 12 * 1.5 * 1.5, 24 * 1.5});
  }
}

TEST_CASE("the gradient of a gradient goes through all_gather, to each replica's own piece",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto seen = strategy.run([] {
    const torch::Tensor x = torch::full({id() + 1}, id() + 1.0F, torch::requires_grad());
    const torch::Tensor y = replica_context().all_gather(x, 0);
    const torch::Tensor first = GradientOf(y.pow(3).sum() * (id() + 1), x);
    (first * first).sum().backward();
    return std::tuple(first.detach(), x.grad());
  });
  // The losses of both are 3 x^3 of each element: 9 x^2, and of its square 324 x^3.
  CHECK(std::get<0>(seen[0]).equal(torch::tensor({9.0F})));
  CHECK(std::get<0>(seen[1]).equal(torch::tensor({36.0F, 36.0F})));
  CHECK(std::get<1>(seen[0]).equal(torch::tensor({324.0F})));
  CHECK(std::get<1>(seen[1]).equal(torch::tensor({2592.0F, 2592.0F})));
}

TEST_CASE("a gradient without create_graph has no history, whatever others ask for",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto seen = strategy.run([] {
    const torch::Tensor x = torch::ones({}, torch::requires_grad());
    const torch::Tensor y = replica_context().all_reduce(ReduceOp::kSum, x);
    const bool graph = id() == 1;
    return torch::autograd::grad({y * y}, {x}, {}, /*retain_graph=*/true, graph)[0];
  });
  for (int r = 0; r < 2; ++r) {
    CHECK(seen[r].item<float>() == 8);
    CHECK(seen[r].requires_grad() == (r == 1));
  }
}

}  // namespace
}  // namespace muster
