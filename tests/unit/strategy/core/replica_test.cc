#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "device/arena.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "tests/support/catch.h"
#include "tests/support/no_threads.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/replicas.h"

namespace muster {
namespace {

using testing::id;
using testing::throws;

TEST_CASE("each replica id appears once", "[spec][MIR-03]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"});

  CHECK(strategy.run(id).values() == std::vector<int>{0, 1, 2});
  CHECK(strategy.num_replicas_in_sync() == 3);
}

TEST_CASE("one device: one replica, with the id 0", "[spec][ONE-01]") {
  OneDeviceStrategy strategy("CPU:3");

  CHECK(strategy.num_replicas_in_sync() == 1);
  CHECK(strategy.run(id).values() == std::vector<int>{0});
}

TEST_CASE("a run for which threads cannot be had is refused, and the next one has them",
          "[strategy][unit]") {
  MirroredStrategy strategy(testing::cpus(3));
  bool refused = false;
  {
    const testing::NoThreads full;
    refused = throws(ErrorCode::kResourceExhausted, "a thread for replica 0 of 3 cannot be had",
                     [&] { strategy.run(id); });
  }

  CHECK(refused);
  CHECK(strategy.run(id).values() == std::vector<int>{0, 1, 2});
}

TEST_CASE("worker and parameter devices are equal and canonical", "[spec][MIR-02]") {
  MirroredStrategy strategy({"CPU:0", "/cpu:1"});

  CHECK(strategy.worker_devices() ==
        std::vector<std::string>{"/job:localhost/replica:0/task:0/device:CPU:0",
                                 "/job:localhost/replica:0/task:0/device:CPU:1"});
  CHECK(strategy.parameter_devices() == strategy.worker_devices());
}

TEST_CASE("tensors made in a replica lie in its device's arena", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:1", "CPU:2"});

  const auto made = strategy.run([] { return torch::ones({100}) + id(); });

  CHECK(device::Arena::IndexOf(made[0].data_ptr()) == 1);
  CHECK(device::Arena::IndexOf(made[1].data_ptr()) == 2);
}

TEST_CASE("each replica computes with its share of the cores", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const int share = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2);

  CHECK(strategy.run([] { return at::get_num_threads(); }).values() ==
        std::vector<int>{share, share});
}

TEST_CASE("grad mode is inherited from the caller", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto mode = [&] { return strategy.run([] { return torch::GradMode::is_enabled(); }); };

  CHECK(mode().values() == std::vector<bool>{true, true});
  {
    const torch::NoGradGuard guard;
    CHECK(mode().values() == std::vector<bool>{false, false});
  }
  const torch::InferenceMode inference;
  CHECK(strategy.run([] { return torch::InferenceMode::is_enabled(); }).values() ==
        std::vector<bool>{true, true});
}

TEST_CASE("all_reduce gives every replica the sum or the mean", "[spec][MIR-18][MIR-19]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto reduce_all = [&](ReduceOp op) {
    return strategy.run([&] {
      const torch::Tensor first = id() == 0 ? torch::tensor(1.0f) : torch::tensor(3.0f);
      const torch::Tensor second =
          id() == 0 ? torch::tensor({39.0f, 2.0f}) : torch::tensor({3.0f, 41.0f});
      return std::pair(replica_context().all_reduce(op, first),
                       replica_context().all_reduce(op, second));
    });
  };

  const auto sums = reduce_all(ReduceOp::kSum);
  for (const auto& [first, second] : sums.values()) {
    CHECK(first.item<float>() == 4);
    CHECK(second.equal(torch::tensor({42.0f, 43.0f})));
  }
  const auto means = reduce_all(ReduceOp::kMean);
  for (const auto& [first, second] : means.values()) {
    CHECK(first.item<float>() == 2);
    CHECK(second.equal(torch::tensor({21.0f, 21.5f})));
  }
}

TEST_CASE("the gradient of all_reduce is the all_reduce of the gradients", "[spec][MIR-20]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto gradients = [&](ReduceOp op) {
    return strategy.run([&] {
      const torch::Tensor x = torch::ones({}, torch::requires_grad());
      const float c = id() == 0 ? 1.0f : 3.0f;
      (replica_context().all_reduce(op, x) * c).backward();
      return x.grad().item<float>();
    });
  };

  CHECK(gradients(ReduceOp::kSum).values() == std::vector<float>{4, 4});
  CHECK(gradients(ReduceOp::kMean).values() == std::vector<float>{2, 2});
}

TEST_CASE("all_reduce on one device changes nothing", "[spec][ONE-03][ONE-04]") {
  OneDeviceStrategy strategy("CPU:0");
  strategy.run([] {
    const torch::Tensor x = torch::tensor({42.0f, 43.0f}, torch::requires_grad());
    CHECK(replica_context().all_reduce(ReduceOp::kSum, x).equal(x));
    (replica_context().all_reduce(ReduceOp::kSum, x) * 4).sum().backward();
    CHECK(x.grad().equal(torch::full({2}, 4.0f)));
    const torch::Tensor y = torch::tensor({21.0f, 22.0f}, torch::requires_grad());
    CHECK(replica_context().all_reduce(ReduceOp::kMean, y).equal(y));
    (replica_context().all_reduce(ReduceOp::kMean, y) * 5).sum().backward();
    CHECK(y.grad().equal(torch::full({2}, 5.0f)));
  });
}

TEST_CASE("a replica that leaves others waiting is an error, and the strategy stays usable",
          "[spec][MIR-29]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});

  CHECK(throws(ErrorCode::kFailedPrecondition, "replica 0 has returned", [&] {
    strategy.run([] {
      if (id() == 1) replica_context().all_reduce(ReduceOp::kSum, torch::ones({2}));
    });
  }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "waits in all_reduce SUM", [&] {
    strategy.run([] {
      const torch::Tensor x = torch::ones({2}, torch::requires_grad());
      const torch::Tensor y = replica_context().all_reduce(ReduceOp::kSum, x);
      if (id() == 0) y.sum().backward();  // in backward, on one replica alone
    });
  }));
  CHECK(strategy.run(id).values() == std::vector<int>{0, 1});
}

// A function of one's own, which an error names as the program does.
struct AddUp {
  int operator()(Strategy&, const PerReplica<int>& all) const { return all[0] + all[1]; }
};

TEST_CASE("replicas that merge with different functions are told so", "[spec][MIR-22][MIR-29]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto f = [](Strategy&, const PerReplica<int>&) { return 1; };
  const auto g = [](Strategy&, const PerReplica<int>&) { return 2; };

  CHECK(throws(ErrorCode::kFailedPrecondition, "replica 1 waits in merge_call", [&] {
    strategy.run([&] {
      return id() == 0 ? replica_context().merge_call(f, 1) : replica_context().merge_call(g, 1);
    });
  }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "merge_call of muster::(anonymous namespace)::AddUp",
               [&] {
                 strategy.run([&] {
                   return id() == 0 ? replica_context().merge_call(AddUp(), 1)
                                    : replica_context().merge_call(g, 1);
                 });
               }));
  CHECK(strategy.run([] { return replica_context().merge_call(AddUp(), id()); }).values() ==
        std::vector<int>{1, 1});
}

TEST_CASE("replicas that bring arguments of other types to one function are told so",
          "[spec][MIR-29]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto count = [](Strategy&, const auto&... all) { return (0 + ... + all.size()); };

  CHECK(throws(ErrorCode::kFailedPrecondition, "with at::Tensor", [&] {
    strategy.run([&] {
      return id() == 0 ? replica_context().merge_call(count, torch::ones({2}))
                       : replica_context().merge_call(count, 1.0);
    });
  }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "with int, double", [&] {
    strategy.run([&] {
      return id() == 0 ? replica_context().merge_call(count, 1, 1.0)
                       : replica_context().merge_call(count, 1);
    });
  }));
  CHECK(strategy.run([&] { return replica_context().merge_call(count, 1, 1.0); }).values() ==
        std::vector<int>{4, 4});
}

TEST_CASE("all_gather joins pieces of different sizes, and gives each its gradient",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"});

  const auto results = strategy.run([] {
    const torch::Tensor x =
        torch::full({id() + 1, 1}, id(), torch::requires_grad().dtype(torch::kFloat));
    const torch::Tensor all = replica_context().all_gather(x, 0);
    (all * torch::arange(6.0f).reshape({6, 1})).sum().backward();
    return std::pair(all.detach(), x.grad());
  });

  for (const auto& [all, gradient] : results.values()) {
    (void)gradient;
    CHECK(all.equal(torch::tensor({0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 2.0f}).reshape({6, 1})));
  }
  CHECK(results[1].second.equal(torch::tensor({3.0f, 6.0f}).reshape({2, 1})));
}

TEST_CASE("components never share storage", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});

  const auto sums =
      strategy.run([] { return replica_context().all_reduce(ReduceOp::kSum, torch::ones({8})); });

  CHECK(sums[0].data_ptr() != sums[1].data_ptr());
  CHECK(device::Arena::IndexOf(sums[1].data_ptr()) == 1);
}

TEST_CASE("each replica gets its own part of a nest that merge_call returns", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"});

  const auto seen = strategy.run([&] {
    const auto [mine, list, label] = replica_context().merge_call(
        [](Strategy&, const PerReplica<int>& ids) {
          std::vector<int> squares;
          for (const int one : ids.values()) squares.push_back(one * one);
          const PerReplica<int> square(squares);
          return std::tuple(square, std::vector{square, ids},
                            std::pair(std::string("all"), Mirrored<int>({7, 8, 9})));
        },
        replica_context().replica_id_in_sync_group());
    static_assert(std::is_same_v<decltype(mine), const int>);
    return std::tuple(mine, list, label);
  });

  for (int r = 0; r < 3; ++r) {
    CHECK(std::get<0>(seen[r]) == r * r);
    CHECK(std::get<1>(seen[r]) == std::vector<int>{r * r, r});
    CHECK(std::get<2>(seen[r]) == std::pair(std::string("all"), 7 + r));
  }
}

}  // namespace
}  // namespace muster
