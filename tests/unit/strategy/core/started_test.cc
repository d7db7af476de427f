// Reductions over the workers of a cluster that are begun, and go on beside the replica function.
#include <algorithm>
#include <chrono>
#include <future>
#include <tuple>
#include <utility>

#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/values/sparse.h"
#include "tests/unit/strategy/multi_worker_mirrored/workers.h"
#include "tests/unit/strategy/replicas.h"

namespace muster::testing {
namespace {

using Values = std::vector<torch::Tensor>;

// What a replica brings: of several types, sizes and packs.
Values values_of_replica(int replica) {
  const auto numbers = [&](std::int64_t count) {
    return torch::sin(torch::arange(count, torch::kFloat) * 0.7 + replica);
  };
  return {numbers(30'000).reshape({300, 100}), numbers(1)[0], numbers(21).to(torch::kFloat64),
          torch::arange(9) + replica,          numbers(0),    numbers(33).to(torch::kHalf)};
}

TEST_CASE("a started all_reduce gives what all_reduce gives, bit for bit",
          "[spec][COL-01][COL-02]") {
  const auto [workers, devices] =
      GENERATE(std::pair{1, 1}, std::pair{2, 1}, std::pair{3, 1}, std::pair{1, 2}, std::pair{2, 2});
  const auto op = GENERATE(ReduceOp(ReduceOp::kSum), ReduceOp(ReduceOp::kMean));
  const auto same = on_cluster<bool>(workers, devices, [&](MultiWorkerMirroredStrategy& strategy) {
    const PerReplica<bool> equal = strategy.run([&] {
      ReplicaContext& here = replica_context();
      const Values mine = values_of_replica(id());
      const CommunicationOptions options{.bytes_per_pack = 1000};
      const Started<Values> started = here.start_all_reduce(op, mine, options);
      const Started<torch::Tensor> second = here.start_all_reduce(op, mine[0]);
      const Values called = here.all_reduce(op, mine, options);
      bool all = started.done() && second.wait().equal(called[0]) && second.done();
      const Values results = started.wait();
      for (std::size_t i = 0; i < called.size(); ++i) {
        all = all && results[i].equal(called[i]) && results[i].dtype() == called[i].dtype() &&
              !results[i].is_alias_of(mine[i]);
      }
      return all;
    });
    return std::all_of(equal.values().begin(), equal.values().end(), [](bool one) { return one; });
  });
  CHECK(same == std::vector<bool>(same.size(), true));
}

TEST_CASE("several may be in flight, in one order with calls, and over several runs",
          "[strategy][unit]") {
  const auto all = on_cluster<Values>(2, 1, [](MultiWorkerMirroredStrategy& strategy) {
    std::vector<Started<torch::Tensor>> started;
    for (int step = 0; step < 100; ++step) {
      strategy.run([&] {
        started.push_back(replica_context().start_all_reduce(
            "SUM", torch::full({50}, static_cast<float>(step * (id() + 1)))));
        if (step % 10 == 0) replica_context().all_gather(torch::ones({1}), 0);
      });
    }
    Values sums;
    for (const auto& one : started) sums.push_back(one.wait());
    return sums;
  });
  for (const Values& sums : all) {
    for (std::size_t step = 0; step < sums.size(); ++step) {
      CHECK(sums[step].equal(torch::full({50}, 3.0F * static_cast<float>(step))));
    }
  }
}

TEST_CASE("nests, numbers and rows are begun as they are reduced", "[strategy][unit]") {
  const int workers = GENERATE(1, 2);
  const auto n = static_cast<float>(workers);
  on_cluster<bool>(workers, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    strategy.run([&] {
      const auto rows =
          to_sparse({torch::ones({2, 1}), torch::tensor({1, 3}), std::vector<std::int64_t>{5, 1}});
      const auto started = replica_context().start_all_reduce(
          ReduceOp::kSum, std::tuple{torch::ones({2}), 2.0, rows, std::vector{torch::ones({1})}});
      const auto [tensor, number, sparse, list] = started.wait();
      if (!tensor.equal(torch::full({2}, n))) FAIL_CHECK("tensor " << tensor);
      if (number.item<double>() != 2.0 * n) FAIL_CHECK("number " << number);
      if (!sparse.to_dense().equal(rows.to_dense() * n)) FAIL_CHECK("rows " << sparse);
      if (list.size() != 1 || !list[0].equal(torch::full({1}, n))) FAIL_CHECK("list");
    });
    return true;
  });
}

TEST_CASE("a started all_reduce has no gradient, and says so", "[strategy][unit]") {
  const int workers = GENERATE(1, 2);
  on_cluster<bool>(workers, 1, [](MultiWorkerMirroredStrategy& strategy) {
    strategy.run([] {
      const auto x = torch::ones({3}, torch::requires_grad());
      const auto sum = replica_context().start_all_reduce(ReduceOp::kSum, x * 2).wait();
      if (!throws(ErrorCode::kUnimplemented, "start_all_reduce", [&] { sum.sum().backward(); })) {
        FAIL_CHECK("a gradient that is none");
      }
    });
    return true;
  });
}

TEST_CASE("what is wrong with a started all_reduce is thrown by wait() and by what follows",
          "[strategy][unit][COL-12]") {
  on_cluster<bool>(2, 1, [](MultiWorkerMirroredStrategy& strategy) {
    strategy.run([] {
      ReplicaContext& here = replica_context();
      const auto started = here.start_all_reduce(ReduceOp::kSum, torch::ones({id() + 2}));
      const auto behind = here.start_all_reduce(ReduceOp::kSum, torch::ones({2}));
      const auto shape = [](const std::function<void()>& body) {
        return throws(ErrorCode::kInvalidArgument, "Shape mismatch", body);
      };
      if (!shape([&] { started.wait(); })) FAIL_CHECK("the call itself");
      if (!shape([&] { started.wait(); })) FAIL_CHECK("again");
      if (!shape([&] { behind.wait(); })) FAIL_CHECK("what was begun behind it");
      if (!shape([&] { here.all_reduce(ReduceOp::kSum, torch::ones({2})); })) FAIL_CHECK("a call");
    });
    return true;
  });
}

TEST_CASE("replicas of one process that begin different things are told so at once",
          "[strategy][unit][COL-12]") {
  MirroredStrategy alone({"CPU:0", "CPU:1"});
  const auto other_shapes = [](Strategy& strategy) {
    return throws(ErrorCode::kInvalidArgument, "Shape mismatch", [&] {
      strategy.run([&] {
        const auto shape = replica_context().local_replica_id() + 1;
        replica_context().start_all_reduce(ReduceOp::kSum, torch::ones({shape}));
      });
    });
  };
  CHECK(other_shapes(alone));
  const auto told = on_cluster<bool>(
      2, 2, [&](MultiWorkerMirroredStrategy& strategy) { return other_shapes(strategy); });
  CHECK(told == std::vector<bool>{true, true});
  const auto packs = on_cluster<bool>(2, 2, [&](MultiWorkerMirroredStrategy& strategy) {
    return throws(ErrorCode::kInvalidArgument, "bytes_per_pack", [&] {
      strategy.run([] {
        const std::int64_t pack = replica_context().local_replica_id();
        replica_context().start_all_reduce(
            ReduceOp::kSum, Values{torch::ones({2}), torch::ones({2})}, {.bytes_per_pack = pack});
      });
    });
  });
  CHECK(packs == std::vector<bool>{true, true});
}

TEST_CASE("a started all_reduce ends at its time limit", "[strategy][unit][COL-10]") {
  const Cluster cluster(2);
  std::promise<void> told;
  const std::shared_future<void> over = told.get_future().share();
  in_threads<bool>(2, [&](int worker) {
    MultiWorkerMirroredStrategy strategy(cluster.options(worker));
    if (worker == 1) {
      over.wait();
      return true;
    }
    strategy.run([&] {
      const auto started = replica_context().start_all_reduce(
          ReduceOp::kSum, torch::ones({2}), {.timeout = std::chrono::milliseconds(500)});
      if (!throws(ErrorCode::kDeadlineExceeded, "for worker:1 (which has not begun it)",
                  [&] { started.wait(); })) {
        FAIL_CHECK("no deadline");
      }
    });
    told.set_value();
    return true;
  });
}

}  // namespace
}  // namespace muster::testing
