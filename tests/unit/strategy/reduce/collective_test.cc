// The collective calls of replicas: all_reduce and all_gather, gathered values, what goes wrong.
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/version.h>

#include "strategy/core/default_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/values/device_of.h"
#include "strategy/values/sparse.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/replicas.h"

namespace muster {
namespace {

using testing::code_of;
using testing::cpus;
using testing::id;
using testing::throws;

int Count() { return replica_context().num_replicas_in_sync(); }

std::vector<std::shared_ptr<CrossDeviceOps>> OpsOfReplicas() {
  return {std::make_shared<CollectiveAllReduce>(), std::make_shared<ReductionToOneDevice>(),
          std::make_shared<HierarchicalCopyAllReduce>(2)};
}

// Gathers make(r) of every replica r.
template <class F>
torch::Tensor Gathered(int n, int axis, F make) {
  MirroredStrategy strategy(cpus(n, 0));
  return strategy.gather(strategy.run([&] { return make(id()); }), axis);
}

TEST_CASE("gather joins along an axis", "[spec][GAT-01][GAT-02][GAT-03]") {
  // GAT-01
  const auto row = [](int) { return torch::tensor({1, 2, 3}); };
  CHECK(Gathered(2, 0, row).equal(torch::tensor({1, 2, 3, 1, 2, 3})));
  // GAT-02
  const auto matrix = [](int) { return torch::tensor({{1, 2, 3}}); };
  CHECK(Gathered(2, 0, matrix).equal(torch::tensor({{1, 2, 3}, {1, 2, 3}})));
  CHECK(Gathered(2, 1, matrix).equal(torch::tensor({{1, 2, 3, 1, 2, 3}})));
  CHECK(Gathered(3, 0, matrix).sizes() == at::IntArrayRef({3, 3}));
  // GAT-03
  const auto cube = [](int r) { return torch::arange(4).reshape({1, 2, 2}) + 10 * r; };
  CHECK(Gathered(2, 0, cube).sizes() == at::IntArrayRef({2, 2, 2}));
  CHECK(Gathered(2, 1, cube).equal(torch::tensor({{{0, 1}, {2, 3}, {10, 11}, {12, 13}}})));
  CHECK(Gathered(2, 2, cube).equal(torch::tensor({{{0, 1, 10, 11}, {2, 3, 12, 13}}})));
}

TEST_CASE("pieces may differ in size along the axis", "[spec][GAT-04]") {
  for (const int n : {1, 2, 3, 4}) {
    const int total = n * (n + 1) / 2;
    const auto rows = Gathered(n, 0, [](int r) { return torch::full({r + 1, 1}, r); });
    CHECK(rows.sizes() == at::IntArrayRef({total, 1}));
    CHECK(rows[total - 1].item<int>() == n - 1);
    CHECK(Gathered(n, 1, [](int r) { return torch::full({1, r + 1}, r); }).sizes() ==
          at::IntArrayRef({1, total}));
  }
}

// gather() in cross-replica context and all_gather() in replicas fail alike.
template <class F>
void CheckRefused(ErrorCode code, const std::string& text, int n, int axis, F make) {
  MirroredStrategy strategy(cpus(n, 0));
  const auto value = strategy.run([&] { return make(id()); });
  CHECK(throws(code, text, [&] { strategy.gather(value, axis); }));
  CHECK(throws(code, text, [&] {
    strategy.run([&] { (void)replica_context().all_gather(make(id()), axis); });
  }));
  CHECK(strategy.run(id).size() == n);  // usable
}

TEST_CASE("what cannot be joined is refused", "[spec][GAT-05][GAT-06][GAT-07][GAT-08][GAT-12]") {
  const auto invalid = ErrorCode::kInvalidArgument;
  // GAT-05
  CheckRefused(invalid, "Shape mismatch: Dimension 1 in both shapes must be equal", 2, 0,
               [](int r) { return torch::ones({2, r + 1}); });
  CheckRefused(invalid, "Dimension 0 in both shapes must be equal", 3, 1,
               [](int r) { return torch::ones({r == 2 ? 5 : 2, 4}); });
  // GAT-06
  CheckRefused(invalid, "ranks differ", 2, 0,
               [](int r) { return r == 0 ? torch::ones({2}) : torch::ones({2, 1}); });
  // GAT-07
  CheckRefused(ErrorCode::kUnimplemented, "does not support IndexedSlices", 2, 0, [](int r) {
    return IndexedSlices{torch::ones({1, 2}), torch::tensor({r}), std::vector<std::int64_t>{4, 2}};
  });
  CheckRefused(ErrorCode::kUnimplemented, "does not support IndexedSlices", 2, 0,
               [](int) { return torch::ones({2, 2}).to_sparse(1); });
  CheckRefused(ErrorCode::kUnimplemented, "does not support IndexedSlices or other sparse", 2, 0,
               [](int) { return torch::eye(2).to_sparse_csr(); });
  // GAT-08
  CheckRefused(invalid, "scalar", 2, 0, [](int) { return torch::tensor(1.0f); });
  OneDeviceStrategy one("CPU:0");
  CHECK(code_of([&] { one.gather(one.run([] { return 1.0f; }), 0); }) == invalid);
  // GAT-12
  for (const int axis : {2, 7, -1, -2}) {
    for (const int n : {1, 2}) {
      CheckRefused(invalid, "axis out of range for value with rank 2", n, axis,
                   [](int) { return torch::ones({2, 3}); });
    }
  }
}

TEST_CASE("all_gather gives every replica the pieces of all, of nests too",
          "[spec][GAT-09][GAT-11]") {
  using Nest = std::tuple<torch::Tensor, std::map<std::string, torch::Tensor>>;
  for (const auto& ops : OpsOfReplicas()) {
    for (const int n : {1, 2, 3}) {
      MirroredStrategy strategy(cpus(n, 1), ops);
      const auto results = strategy.run([] {
        const Nest nest{torch::full({id() + 1, 2}, id(), torch::kLong),
                        {{"a", torch::full({2, 2}, id(), torch::kBool)},
                         {"b", torch::full({0, 5}, 1.5, torch::kBFloat16)}}};
        return replica_context().all_gather(nest, 0);
      });

      for (int r = 0; r < n; ++r) {
        const auto& [first, map] = results[r];
        CHECK(first.sizes() == at::IntArrayRef({n * (n + 1) / 2, 2}));
        CHECK(first[-1][0].item<int>() == n - 1);
        CHECK(map.at("a").sizes() == at::IntArrayRef({2 * n, 2}));
        CHECK(map.at("a").scalar_type() == torch::kBool);
        CHECK(map.at("a")[-1][1].item<bool>() == (n > 1));
        CHECK(map.at("b").sizes() == at::IntArrayRef({0, 5}));
        for (const torch::Tensor& tensor : {first, map.at("a"), map.at("b")}) {
          CHECK(muster::device_of(tensor) ==
                strategy.worker_devices()[static_cast<std::size_t>(r)]);
          if (r > 0) CHECK(tensor.data_ptr() != std::get<0>(results[0]).data_ptr());
        }
      }
      // GAT-11: gather lies on the current device.
      const auto pieces = strategy.run([] { return torch::ones({2}); });
      CHECK(muster::device_of(strategy.gather(pieces, 0)).ends_with("CPU:0"));
      const DeviceScope device("CPU:6");
      CHECK(muster::device_of(strategy.gather(pieces, 0)).ends_with("CPU:6"));
    }
  }
}

TEST_CASE("the gradient of all_gather: every element gets the sum of what was done to it",
          "[spec][GAT-10]") {
  for (const auto& ops : OpsOfReplicas()) {
    for (const int n : {2, 3}) {
      MirroredStrategy strategy(cpus(n, 0), ops);
      const auto gradients = strategy.run([] {
        const torch::Tensor x = torch::ones({2, 3}, torch::requires_grad());
        (replica_context().all_gather(x, 1) * (id() + 1)).sum().backward();
        return x.grad();
      });
      for (int r = 0; r < n; ++r) {
        CHECK(gradients[r].equal(torch::full({2, 3}, n * (n + 1) / 2.0f)));
      }
    }
  }
}

TEST_CASE("each replica gets the gradient of its own piece", "[spec][GAT-13]") {
  MirroredStrategy strategy(cpus(3, 0));
  const auto gradients = strategy.run([] {
    const torch::Tensor x = torch::ones({id() + 1, 1}, torch::requires_grad());
    const torch::Tensor all = replica_context().all_gather(x, 0);
    (all * torch::arange(6.0f).reshape({6, 1}) * (id() + 1)).sum().backward();
    return x.grad().flatten();
  });
  // Row i is multiplied by i on every replica, and by 1 + 2 + 3 together.
  CHECK(gradients[0].equal(torch::tensor({0.0f})));
  CHECK(gradients[1].equal(torch::tensor({6.0f, 12.0f})));
  CHECK(gradients[2].equal(torch::tensor({18.0f, 24.0f, 30.0f})));
}

using MixedNest = std::tuple<torch::Tensor, IndexedSlices, std::vector<torch::Tensor>>;

MixedNest Mixed() {
  return {
      torch::full({3}, id() + 1.0f),
      IndexedSlices{torch::full({1, 2}, id() + 1.0f), torch::tensor({id()}),
                    std::vector<std::int64_t>{4, 2}},
      {torch::full({2, 2}, id() + 1, torch::kLong), torch::zeros({0}), torch::tensor(id() + 1.0)}};
}

TEST_CASE("all_reduce of a nest keeps its order, sparse leaves are joined", "[spec][XDO-22]") {
  for (const auto& ops : OpsOfReplicas()) {
    for (const int n : {1, 2, 4}) {
      for (const std::int64_t pack : {0, 1, 16}) {
        MirroredStrategy strategy(cpus(n, 0), ops);
        const auto results = strategy.run([&] {
          return replica_context().all_reduce(ReduceOp::kSum, Mixed(), {.bytes_per_pack = pack});
        });
        const float sum = static_cast<float>(n * (n + 1)) / 2;
        for (int r = 0; r < n; ++r) {
          const auto& [dense, slices, list] = results[r];
          CHECK(dense.equal(torch::full({3}, sum)));
          CHECK(slices.indices.equal(torch::arange(n)));
          CHECK(to_dense(slices).sum().item<float>() == 2 * sum);
          CHECK(list[0].equal(torch::full({2, 2}, static_cast<int>(sum), torch::kLong)));
          CHECK(list[1].sizes() == at::IntArrayRef({0}));
          CHECK(list[2].item<double>() == sum);
          for (const torch::Tensor& tensor : {dense, slices.values, slices.indices, list[0]}) {
            CHECK(muster::device_of(tensor) ==
                  strategy.worker_devices()[static_cast<std::size_t>(r)]);
          }
        }
      }
    }
  }
}

TEST_CASE("sparse tensors with one sparse dimension are reduced as IndexedSlices, no gradient",
          "[spec][XDO-22]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto means = strategy.run([] {
    const torch::Tensor rows = torch::sparse_coo_tensor(torch::tensor({{id(), 3}}),
                                                        torch::full({2, 2}, id() + 1.0f), {5, 2});
    return replica_context().all_reduce(ReduceOp::kMean, rows);
  });
  for (const torch::Tensor& mean : means.values()) {
    CHECK(mean.is_sparse());
    CHECK(mean.to_dense().select(1, 0).equal(torch::tensor({0.5f, 1.0f, 0.0f, 1.5f, 0.0f})));
  }
  CHECK(throws(ErrorCode::kUnimplemented, "IndexedSlices", [&] {
    strategy.run([] {
      const torch::Tensor values = torch::ones({1, 2}, torch::requires_grad());
      const IndexedSlices slices{values, torch::tensor({id()}), std::vector<std::int64_t>{4, 2}};
      replica_context().all_reduce(ReduceOp::kSum, slices).values.sum().backward();
    });
  }));
  CHECK(strategy.run(id).size() == 2);
}

TEST_CASE("large batches in packs of any size give the sums and gradients of all",
          "[strategy][unit]") {
  for (const auto& ops : OpsOfReplicas()) {
    for (const int n : {2, 3}) {
      for (const std::int64_t pack : {0, 1, 100'000}) {
        MirroredStrategy strategy(cpus(n, 0), ops);
        const auto sums = strategy.run([&] {
          std::vector<torch::Tensor> leaves, scaled;
          for (const std::int64_t size : {70'001, 3, 20'000}) {
            leaves.push_back(
                torch::full({size}, id() + 1.0, torch::requires_grad().dtype(torch::kDouble)));
          }
          leaves.push_back(torch::full({30'000}, id() + 1, torch::kInt));
          const auto reduced =
              replica_context().all_reduce(ReduceOp::kMean, leaves, {.bytes_per_pack = pack});
          (reduced[0].sum() + 2 * reduced[2].sum()).backward();
          std::vector<double> found;
          for (const torch::Tensor& one : reduced) {
            found.push_back(one.min().item<double>());
            found.push_back(one.max().item<double>());
          }
          for (const int i : {0, 1, 2}) {
            found.push_back(leaves[static_cast<std::size_t>(i)].grad().sum().item<double>());
          }
          found.push_back(reduced[3].scalar_type() == torch::kDouble ? 1 : 0);
          return found;
        });
        const double mean = (n + 1) / 2.0;
        for (const auto& found : sums.values()) {
          CHECK(found == std::vector<double>{mean, mean, mean, mean, mean, mean, mean, mean, 70'001,
                                             0, 40'000, 1});
        }
      }
    }
  }
}

TEST_CASE("all_reduce of every type", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(3, 0));
  for (const auto type :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong, torch::kInt,
        torch::kShort, torch::kChar, torch::kByte, torch::kComplexFloat}) {
    CAPTURE(torch::toString(type));
    // Not contiguous, and other numbers in each place.
    const auto times = [&](int n) { return (torch::arange(6).reshape({2, 3}) * n).to(type).t(); };
    const auto turned = strategy.run([&] { return times(id() + 1); });
    const auto sums = strategy.run([&] {
      return std::pair(replica_context().all_reduce("sum", turned.get()),
                       replica_context().all_reduce("MEAN", turned.get()));
    });
    CHECK(strategy.reduce(ReduceOp::kSum, turned).equal(times(6)));
    for (const auto& [sum, mean] : sums.values()) {
      CHECK(sum.equal(times(6)));
      const bool whole = torch::isIntegralType(type, /*includeBool=*/false);
      CHECK(mean.equal(times(2).to(whole ? torch::kDouble : type)));
    }
  }
  CHECK(throws(ErrorCode::kInvalidArgument, "bool has no sum", [&] {
    strategy.run(
        [] { replica_context().all_reduce(ReduceOp::kSum, torch::ones({2}, torch::kBool)); });
  }));
}

TEST_CASE("tensors that do not go together are refused on all replicas", "[strategy][unit]") {
  for (const auto& ops : OpsOfReplicas()) {
    MirroredStrategy strategy(cpus(2, 0), ops);
    for (const std::int64_t size : {1, 100'000}) {
      CHECK(throws(ErrorCode::kInvalidArgument, "Shape mismatch", [&] {
        strategy.run([&] { replica_context().all_reduce("sum", torch::ones({size, id() + 1})); });
      }));
    }
    CHECK(throws(ErrorCode::kInvalidArgument, "replica 1", [&] {
      strategy.run([&] {
        replica_context().all_reduce("sum",
                                     torch::ones({2}, id() == 0 ? torch::kFloat : torch::kInt));
      });
    }));
    CHECK(throws(ErrorCode::kInvalidArgument, "replica 1 brings 2 tensors, replica 0 1", [&] {
      strategy.run([&] {
        replica_context().all_reduce(
            "sum",
            std::vector<torch::Tensor>(static_cast<std::size_t>(id() + 1), torch::ones({2})));
      });
    }));
    CHECK(throws(ErrorCode::kInvalidArgument, "not one of: SUM, MEAN", [&] {
      strategy.run([] { replica_context().all_reduce(static_cast<ReduceOp>(9), torch::ones({})); });
    }));
    CHECK(throws(ErrorCode::kInvalidArgument, "undefined", [&] {
      strategy.run([] {
        replica_context().all_reduce("sum", id() == 0 ? torch::Tensor() : torch::ones({2}));
      });
    }));
    CHECK(strategy.run(id).values() == std::vector<int>{0, 1});
  }
}

TEST_CASE("one replica that makes another call, or none, is an error that names it",
          "[spec][MIR-29]") {
  MirroredStrategy strategy(cpus(3, 0));
  const auto failed = [&](const std::string& text, const std::function<void()>& body) {
    const bool right =
        throws(ErrorCode::kFailedPrecondition, text, [&] { strategy.run([&] { body(); }); });
    return right && strategy.run(id).values() == std::vector<int>{0, 1, 2};
  };
  const torch::Tensor x = torch::ones({2});

  CHECK(failed("replica 1 has returned", [&] {
    if (id() != 1) replica_context().all_gather(x, 0);
  }));
  CHECK(failed("replica 2 waits in all_gather", [&] {
    id() == 2 ? replica_context().all_gather(x, 0) : replica_context().all_reduce("sum", x);
  }));
  CHECK(failed("replica 0 waits in all_reduce MEAN",
               [&] { replica_context().all_reduce(id() == 0 ? "mean" : "sum", x); }));
  CHECK(failed("waits in merge_call", [&] {
    if (id() == 0) replica_context().merge_call([](Strategy&) {});
  }));
  // In backward: on one replica alone, and of another graph.
  CHECK(failed("waits in all_reduce SUM", [] {
    const torch::Tensor leaf = torch::ones({2}, torch::requires_grad());
    const torch::Tensor sum = replica_context().all_reduce("sum", leaf).sum();
    if (id() == 1) sum.backward();
  }));
  CHECK(failed("replica 0 waits in gradient of all_gather", [] {
    const torch::Tensor leaf = torch::ones({2}, torch::requires_grad());
    const torch::Tensor joined = replica_context().all_gather(leaf, 0).sum();
    const torch::Tensor sum = replica_context().all_reduce("sum", leaf).sum();
    (id() == 0 ? joined : sum).backward();
  }));
}

TEST_CASE("a replica that throws alone ends the run with its own exception", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(3, 0));
  for (const int thrower : {0, 1, 2}) {
    CHECK_THROWS_AS(strategy.run([&] {
      const torch::Tensor leaf = torch::ones({2}, torch::requires_grad());
      const torch::Tensor sum = replica_context().all_reduce("sum", leaf).sum();
      if (id() == thrower) throw std::domain_error("alone");
      sum.backward();
    }),
                    std::domain_error);
    CHECK(strategy.run(id).values() == std::vector<int>{0, 1, 2});
  }
}

TEST_CASE("replicas that wait longer than their timeout are told who is missing",
          "[strategy][unit]") {
  for (const auto& ops : OpsOfReplicas()) {
    MirroredStrategy strategy(cpus(2, 0), ops);
    std::atomic<bool> gave_up{false};
    CHECK(throws(ErrorCode::kDeadlineExceeded, "replica 1 is running", [&] {
      strategy.run([&] {
        if (id() == 1) {
          while (!gave_up) std::this_thread::yield();
          return;
        }
        struct Tell {
          std::atomic<bool>& flag;
          ~Tell() { flag = true; }
        } const tell{gave_up};
        replica_context().all_reduce("sum", torch::ones({2}),
                                     {.timeout = std::chrono::milliseconds(20)});
      });
    }));
    CHECK(strategy
              .run([] {
                return replica_context()
                    .all_reduce("sum", torch::ones({}),
                                {.timeout = std::chrono::milliseconds(60'000)})
                    .item<float>();
              })
              .values() == std::vector<float>{2, 2});
  }
}

TEST_CASE("a gradient of a collective call is made inside the replica function",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto losses = strategy.run([] {
    return replica_context().all_reduce("sum", torch::ones({2}, torch::requires_grad())).sum();
  });

  CHECK(throws(ErrorCode::kFailedPrecondition, "call backward() inside the replica function",
               [&] { losses[1].backward(); }));
}

void SetAutocast(bool enabled) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  at::autocast::set_autocast_enabled(at::kCPU, enabled);
  at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
#else
  at::autocast::set_cpu_enabled(enabled);
  at::autocast::set_autocast_cpu_dtype(torch::kBFloat16);
#endif
  if (!enabled) at::autocast::clear_cache();
}

TEST_CASE("replicas inherit grad mode, inference mode and autocast from their caller",
          "[spec][MIR-30]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto grad = [&] { return strategy.run([] { return torch::GradMode::is_enabled(); }); };
  const auto inference = [&] {
    return strategy.run([] { return torch::ones({2}).is_inference(); });
  };
  const auto product_type = [&] {
    return strategy.run([] { return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).dtype(); });
  };
  const auto both = [](const auto& value, const auto& expected) {
    return value[0] == expected && value[1] == expected;
  };

  CHECK(both(grad(), true));
  CHECK(both(inference(), false));
  CHECK(both(product_type(), torch::ones({1}).dtype()));
  {
    const torch::NoGradGuard guard;
    CHECK(both(grad(), false));
  }
  {
    const torch::InferenceMode mode;
    CHECK(both(inference(), true));
  }
  SetAutocast(true);
  CHECK(both(product_type(), torch::ones({1}, torch::kBFloat16).dtype()));
  SetAutocast(false);
  CHECK(both(grad(), true));
  CHECK(both(inference(), false));
  CHECK(both(product_type(), torch::ones({1}).dtype()));
}

TEST_CASE("autocast sees weights as they are now, not as an earlier run cast them",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2, 0));
  const torch::Tensor weight = torch::ones({2, 2}, torch::requires_grad());
  SetAutocast(true);
  const auto sum = [&] {
    return strategy.run([&] { return torch::mm(torch::ones({2, 2}), weight).sum().item<float>(); });
  };

  CHECK(sum()[1] == 8);
  {
    const torch::NoGradGuard guard;
    weight.mul_(3);
  }
  CHECK(sum()[1] == 24);
  SetAutocast(false);
}

TEST_CASE("dropout is the same on every rerun of a seed and differs between replicas",
          "[spec][MIR-31]") {
  for (const int n : {2, 3}) {
    MirroredStrategy strategy(cpus(n, 0));
    const auto rerun = [&](std::uint64_t seed) {
      torch::manual_seed(seed);
      std::vector<torch::Tensor> all;
      for (int step = 0; step < 2; ++step) {
        const auto masks = strategy.run([] {
          return torch::cat({torch::dropout(torch::ones({64}), 0.5, true), torch::rand({4}),
                             torch::randn({4}), torch::randperm(8).to(torch::kFloat),
                             torch::randint(1000, {4}, torch::kFloat)});
        });
        for (const torch::Tensor& mask : masks.values()) all.push_back(mask);
      }
      return all;
    };
    const auto first = rerun(7), second = rerun(7), other = rerun(8);

    for (std::size_t i = 0; i < first.size(); ++i) {
      CHECK(first[i].equal(second[i]));
      CHECK_FALSE(first[i].equal(other[i]));
      // Neither another replica's nor another step's; also not the one before shifted by a few.
      for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(first[i].equal(first[j]));
    }
  }
}

TEST_CASE("random numbers of replicas: explicit generators, the caller's own, runs in runs",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2, 0));
  // A generator that is given is used.
  const auto own = strategy.run([] {
    auto generator = at::detail::createCPUGenerator(5);
    return torch::rand({4}, generator);
  });
  CHECK(own[0].equal(own[1]));
  // A run that draws nothing leaves the caller's numbers alone; one that draws takes one.
  const auto after = [&](const std::function<void()>& run) {
    torch::manual_seed(3);
    run();
    return torch::rand({4});
  };
  const torch::Tensor untouched = after([] {});
  CHECK(after([&] { strategy.run(id); }).equal(untouched));
  CHECK_FALSE(after([&] { strategy.run([] { return torch::rand({1}); }); }).equal(untouched));
  // Two runs inside a merge call draw different numbers, the same on every rerun.
  const auto nested = [&] {
    torch::manual_seed(11);
    return strategy.run([&] {
      return replica_context().merge_call([&](Strategy& s) {
        const auto draw = [&] { return s.run([] { return torch::rand({4}); }); };
        const auto first = draw(), second = draw();
        return torch::stack({first[0], first[1], second[0], second[1]});
      });
    })[0];
  };
  const torch::Tensor four = nested();
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < i; ++j) CHECK_FALSE(four[i].equal(four[j]));
  }
  for (int i = 0; i < 10; ++i) CHECK(nested().equal(four));
}

TEST_CASE("each replica computes with its share of the cores, read back inside",
          "[strategy][unit]") {
  for (const int n : {2, 3, 8}) {
    MirroredStrategy strategy(cpus(n, 0));
    const int share = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / n);
    CHECK(strategy.run([] { return at::get_num_threads(); }).values() ==
          std::vector<int>(static_cast<std::size_t>(n), share));
  }
  CHECK(MirroredStrategy(cpus(4, 0)).run(Count).values() == std::vector<int>{4, 4, 4, 4});
}

TEST_CASE("the result of a collective call is never its argument's memory", "[strategy][unit]") {
  OneDeviceStrategy one("CPU:1");
  MirroredStrategy two(cpus(2));
  for (Strategy* const strategy : std::vector<Strategy*>{&one, &two, &default_strategy()}) {
    const auto shared = strategy->run([] {
      const torch::Tensor value = torch::ones({3});
      const torch::Tensor sum = replica_context().all_reduce(ReduceOp::kSum, value);
      const torch::Tensor all = replica_context().all_gather(value, 0);
      return int{sum.is_alias_of(value) || all.is_alias_of(value)};
    });
    for (int r = 0; r < strategy->num_replicas_in_sync(); ++r) CHECK(shared[r] == 0);
  }
}

TEST_CASE("a mean of integers is float64: large ones lose nothing", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  constexpr std::int64_t kLarge = (std::int64_t{1} << 40) + 1;
  const auto results = strategy.run([] {
    return replica_context().all_reduce(ReduceOp::kMean, torch::full({2}, kLarge + 2 * id()));
  });
  const auto values = strategy.run([] { return torch::full({2}, kLarge + 2 * id()); });
  const torch::Tensor expected = torch::full({2}, static_cast<double>(kLarge + 1), torch::kDouble);
  CHECK(results[0].scalar_type() == torch::kDouble);
  CHECK(results[0].equal(expected));
  CHECK(strategy.reduce(ReduceOp::kMean, values).equal(expected));
  CHECK(strategy.reduce(ReduceOp::kMean, values, 0).scalar_type() == torch::kDouble);
}

}  // namespace
}  // namespace muster
