// Replicas on emulated TPU cores.
#include "strategy/tpu/tpu_strategy.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "strategy/input/distributed_dataset.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/resolver/cluster_resolver.h"
#include "strategy/train/checkpoint.h"
#include "strategy/train/module.h"
#include "strategy/train/optimizer.h"
#include "strategy/values/device_of.h"
#include "strategy/variables/extended.h"
#include "strategy/variables/variable.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/logged.h"
#include "tests/unit/strategy/replicas.h"
#include "tests/unit/strategy/tpu/cores.h"

namespace muster {
namespace {

using testing::code_of;
using testing::Cores;
using testing::id;
using testing::log_of;
using testing::throws;
using testing::tpu;
using Doubles = std::vector<double>;

Doubles items(const PerReplica<torch::Tensor>& value) {
  Doubles numbers;
  for (const torch::Tensor& one : value.values()) numbers.push_back(one.item<double>());
  return numbers;
}

TEST_CASE("a strategy has a replica on each core, or those of its assignment",
          "[strategy][spec][TPS-01]") {
  const Cores cores("2x2x1x2");
  CHECK(TPUStrategy().num_replicas_in_sync() == 8);
  TPUStrategy pairs(cores.replicas_of(2, 4));
  CHECK(pairs.num_replicas_in_sync() == 4);
  CHECK(pairs.num_cores_per_replica() == 2);
  CHECK(pairs.name() == "TPUStrategy");
  const auto resolver =
      std::make_shared<TPUClusterResolver>(TPUClusterResolver::Options{.tpu = "local"});
  CHECK(TPUStrategy(resolver).cluster_resolver() == resolver);
}

TEST_CASE("replicas lie where the assignment says, and read the components there",
          "[strategy][spec][TPS-02]") {
  const Cores cores("1x1x1x2");
  TPUStrategy all;
  auto v = [&] {
    const auto scope = all.scope();
    return Variable::create("v", 0.0);
  }();
  v.component(0).assign(1);
  v.component(1).assign(42);

  TPUStrategy swapped(cores.on({{{0, 0, 0, 1}}, {{0, 0, 0, 0}}}));

  CHECK(swapped.worker_devices() == std::vector<std::string>{tpu(1), tpu(0)});
  CHECK(items(swapped.run([&] { return v.value(); })) == Doubles{42, 1});
  CHECK(items(all.run([&] { return v.value(); })) == Doubles{1, 42});
  CHECK(
      throws(ErrorCode::kFailedPrecondition, "Mixing", [&] { swapped.run([&] { v.assign(3); }); }));
}

TEST_CASE("hosts and the replicas on each are counted", "[strategy][spec][TPS-03]") {
  const Cores cores("2x2x1x2");
  TPUStrategy one(cores.on({{{0, 0, 0, 0}}}));
  CHECK(one.num_hosts() == 1);
  CHECK(one.num_replicas_per_host() == 1);
  TPUStrategy pairs(cores.replicas_of(2, 3));
  CHECK(pairs.num_hosts() == 1);
  CHECK(pairs.num_replicas_per_host() == 3);
  CHECK(TPUStrategy().num_replicas_per_host() == 8);
}

TEST_CASE("strategies on cores of their own read a variable that they share",
          "[strategy][spec][TPS-04]") {
  const Cores cores("1x1x1x2");
  TPUStrategy first(cores.on({{{0, 0, 0, 0}}})), second(cores.on({{{0, 0, 0, 1}}}));
  auto v = [&] {
    const auto scope = first.scope();
    return Variable::create("v", 1.0);
  }();
  const auto mine = first.run([&] { return v + 0; });
  const auto theirs = second.run([&] { return v + 0; });
  CHECK(mine[0].item<double>() + theirs[0].item<double>() == 2);
  CHECK(device_of(theirs[0]) == tpu(1));
  const auto local = [&] {
    const auto scope = first.scope();
    return Variable::create("local", 1.0,
                            {.synchronization = VariableSynchronization::kOnRead,
                             .aggregation = VariableAggregation::kSum});
  }();
  CHECK(throws(ErrorCode::kFailedPrecondition, "Mixing",
               [&] { second.run([&] { return local.value(); }); }));
}

TEST_CASE("nothing, and what is empty, comes back as it was", "[strategy][spec][TPS-07]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy;
  using List = std::vector<torch::Tensor>;
  using Dictionary = std::map<std::string, torch::Tensor>;
  const auto same =
      strategy.run([](const std::optional<torch::Tensor>& none, const List& list,
                      const Dictionary& dictionary) { return std::tuple(none, list, dictionary); },
                   std::optional<torch::Tensor>(), List(), Dictionary());
  for (const auto& [none, list, dictionary] : same.values()) {
    CHECK_FALSE(none.has_value());
    CHECK(list.empty());
    CHECK(dictionary.empty());
  }
}

TEST_CASE("results lie on the cores of their replicas", "[strategy][spec][TPS-08]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy;
  const auto squares = strategy.run([](const torch::Tensor& x) { return x * x; }, torch::tensor(2));
  CHECK(items(squares) == Doubles{4, 4});
  CHECK(device_of(squares[0]) == tpu(0));
  CHECK(device_of(squares[1]) == tpu(1));
}

TEST_CASE("the mean over cores is on the host", "[strategy][spec][TPS-09]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy;
  const auto squares = strategy.run([] { return torch::tensor(2.0 + id()).square(); });
  const torch::Tensor mean = strategy.reduce(ReduceOp::kMean, squares);
  CHECK(mean.item<double>() == 6.5);
  CHECK(device_of(mean) == testing::cpu(0));
  CHECK(throws(ErrorCode::kUnimplemented, "by SUM and MEAN alone: reduce op \"MAX\"",
               [&] { (void)strategy.reduce("MAX", squares); }));
  CHECK(throws(ErrorCode::kUnimplemented, "by SUM and MEAN alone: reduce op \"MAX\"",
               [&] { (void)strategy.extended().reduce_to("MAX", squares, "CPU:0"); }));
  const std::vector<std::pair<PerReplica<torch::Tensor>, Destinations>> batch{{squares, "CPU:0"}};
  CHECK(throws(ErrorCode::kUnimplemented, "by SUM and MEAN alone: reduce op \"MAX\"",
               [&] { (void)strategy.extended().batch_reduce_to("MAX", batch); }));
}

TEST_CASE("after a function that cannot be computed the next one runs",
          "[strategy][spec][TPS-10]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy;
  CHECK_THROWS(
      strategy.run([] { return torch::matmul(torch::ones({2, 3}), torch::ones({2, 3})); }));
  CHECK(items(strategy.run([] { return torch::ones({}); })) == Doubles{1, 1});
}

TEST_CASE("who initializes a TPU system twice is told so, and nothing is lost",
          "[strategy][spec][TPS-11]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy;
  const auto scope = strategy.scope();
  const auto v = Variable::create("v", 5.0);
  const std::string said = log_of([] { (void)initialize_tpu_system({.topology = "1x1x1x2"}); });
  CHECK(said.find("already been initialized") != std::string::npos);
  CHECK(v.value().item<double>() == 5);
}

TEST_CASE("all_gather brings every replica the values of all, in their order",
          "[strategy][spec][TPS-12]") {
  const Cores cores("2x2x1x2");
  TPUStrategy strategy;
  const auto all =
      strategy.run([] { return replica_context().all_gather(torch::full({1}, id() + 1.0), 0); });
  for (int r = 0; r < 8; ++r) {
    CHECK(all[r].equal(torch::arange(1.0, 9.0)));
    CHECK(device_of(all[r]) == tpu(r));
  }
}

TEST_CASE("on cores all_gather takes equal shapes alone", "[strategy][spec][GAT-09]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy;
  CHECK(throws(ErrorCode::kInvalidArgument, "equal shapes only", [&] {
    strategy.run([] { return replica_context().all_gather(torch::ones({id() + 1}), 0); });
  }));
}

TEST_CASE("a last batch may be smaller", "[strategy][spec][TPS-13]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy;
  auto iterator =
      experimental_distribute_dataset(
          strategy, dataset::from_tensor_slices(torch::tensor({5.0, 6.0, 7.0})).batch(4))
          .iterator();
  const auto batch = iterator.get_next();
  CHECK(items(strategy.run(
            RunOptions{}, [](const torch::Tensor& x) { return x.mean(); }, batch)) ==
        Doubles{5.5, 7});
}

// Elements are dense everywhere, so there is no fetching of others to a core that could be refused
// (INP-33).
TEST_CASE("a sparse element of a dataset is refused on cores by the name of its column",
          "[strategy][spec]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy;
  const bool fetched = GENERATE(true, false);
  const InputOptions options{.experimental_fetch_to_device = fetched};
  const auto sparse = [](const torch::Tensor& n) { return torch::eye(3).mul(n).to_sparse(); };
  CHECK(throws(ErrorCode::kInvalidArgument, "column value: a dense tensor in host memory is wanted",
               [&] {
                 (void)experimental_distribute_dataset(
                     strategy, dataset::range(4).map(sparse).batch(2), options)
                     .iterator()
                     .get_next();
               }));
  const auto named = dataset::range(4).map([&](const torch::Tensor& n) {
    return std::map<std::string, torch::Tensor>{{"label", n}, {"words", sparse(n)}};
  });
  CHECK(throws(ErrorCode::kInvalidArgument, "column words: a dense tensor in host memory is wanted",
               [&] {
                 (void)experimental_distribute_dataset(strategy, named.batch(2), options)
                     .iterator()
                     .get_next();
               }));
}

TEST_CASE("data follows the numbers of replicas, not those of cores", "[strategy][spec][TPS-14]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy(cores.on({{{0, 0, 0, 1}}, {{0, 0, 0, 0}}}));
  auto iterator = experimental_distribute_dataset(
                      strategy, dataset::from_tensor_slices(torch::tensor({0.0, 1.0})).batch(2))
                      .iterator();
  const PerReplica<torch::Tensor> batch = iterator.get_next();
  std::map<std::string, double> on_core;
  for (const torch::Tensor& piece : batch.values()) {
    on_core[device_of(piece)] = piece.item<double>();
  }
  CHECK(on_core == std::map<std::string, double>{{tpu(0), 1}, {tpu(1), 0}});
  const auto numbers = strategy.distribute_values_from_function([](const ValueContext& context) {
    return torch::tensor(static_cast<double>(context.replica_id_in_sync_group));
  });
  CHECK(items(strategy.run([](const torch::Tensor& x) { return x - id(); }, numbers)) ==
        Doubles{0, 0});
}

TEST_CASE("an all-reduce along the torus has the sum of a flat one on every core",
          "[strategy][spec]") {
  const Cores cores("2x2x1x2");
  torch::manual_seed(3);
  const torch::Tensor values = torch::randn({8, 20000}, torch::kDouble);
  const auto ring = DeviceAssignment::build(cores.topology,
                                            {.computation_shape = {1, 1, 1, 2}, .num_replicas = 4});
  const std::vector<TPUStrategyOptions> options = {
      {}, {.experimental_device_assignment = ring}, cores.replicas_of(1, 3)};
  for (const TPUStrategyOptions& one : options) {
    TPUStrategy strategy(one);
    const int replicas = strategy.num_replicas_in_sync();
    CHECK((strategy.torus() != nullptr) == (replicas != 3));
    for (const std::int64_t count : {7, 20000}) {
      const torch::Tensor mine = values.narrow(0, 0, replicas).narrow(1, 0, count);
      const auto means =
          strategy.run([&] { return replica_context().all_reduce(ReduceOp::kMean, mine[id()]); });
      const torch::Tensor flat = mine.mean(0);
      for (const torch::Tensor& mean : means.values()) {
        CHECK(mean.equal(means[0]));
        CHECK(torch::allclose(mean, flat, 1e-13, 1e-13));
      }
    }
  }
}

TEST_CASE("when the cores are down what lies on them stays, and nothing new is made there",
          "[strategy][spec]") {
  std::optional<Cores> cores;
  cores.emplace("1x1x1x2");
  TPUStrategy strategy;
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", 1.0);
  cores.reset();
  CHECK(v.assign_add(1).item<double>() == 2);
  CHECK(throws(ErrorCode::kInvalidArgument, "no TPU cores are up",
               [] { (void)Variable::create("w", 1.0); }));
}

TEST_CASE("an assignment for other cores than are up is refused, and so is no TPU at all",
          "[strategy][spec]") {
  const Topology two_hosts{{1, 1, 1, 2}, {{{0, 0, 0, 0}}, {{0, 0, 0, 1}}}};
  const TPUStrategyOptions elsewhere{.experimental_device_assignment =
                                         DeviceAssignment(two_hosts, {{{0, 0, 0, 1}}})};
  CHECK(throws(ErrorCode::kFailedPrecondition, "initialize_tpu_system",
               [] { TPUStrategy strategy; }));
  const Cores cores("1x1x1x2");
  CHECK(throws(ErrorCode::kInvalidArgument, "2 tasks", [&] { TPUStrategy strategy(elsewhere); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "TPU:2", [] { DeviceScope scope("TPU:2"); }));
}

}  // namespace
}  // namespace muster
