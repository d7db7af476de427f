#include "strategy/core/context.h"

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <type_traits>

#include "device/placing.h"
#include "strategy/core/default_strategy.h"
#include "strategy/kinds/central_storage_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/resolver/cluster_resolver.h"
#include "strategy/variables/extended.h"
#include "tests/support/catch.h"
#include "tests/support/environment_variables.h"
#include "tests/unit/strategy/errors.h"

namespace muster {
namespace {

using testing::EnvironmentVariables;
using testing::throws;

void CheckDefaultState() {
  CHECK(&get_strategy() == &default_strategy());
  CHECK_FALSE(has_strategy());
  CHECK(get_replica_context() == &default_replica_context());
  CHECK(get_cross_replica_context() == nullptr);
  CHECK_FALSE(in_cross_replica_context());
}

TEST_CASE("outside any scope the default strategy is current", "[spec][LIB-01]") {
  CheckDefaultState();
}

TEST_CASE("inside a scope its strategy is current, in cross-replica context",
          "[spec][LIB-02][LIB-06]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  {
    const auto scope = strategy.scope();
    CHECK(&get_strategy() == &strategy);
    CHECK(has_strategy());
    CHECK(in_cross_replica_context());
    CHECK(get_replica_context() == nullptr);
    CHECK(get_cross_replica_context() == &strategy);
  }
  CheckDefaultState();
  try {
    const auto scope = strategy.scope();
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  CheckDefaultState();
}

TEST_CASE("inside run() there is a replica context and no cross-replica one", "[spec][LIB-03]") {
  for (const int replicas : {1, 2, 3}) {
    std::vector<std::string> devices;
    for (int i = 0; i < replicas; ++i) devices.push_back("CPU:" + std::to_string(i));
    MirroredStrategy strategy(devices);

    const auto right = strategy.run([&] {
      return get_replica_context() != nullptr && get_cross_replica_context() == nullptr &&
             &get_strategy() == &strategy && &replica_context().strategy() == &strategy;
    });

    for (int r = 0; r < replicas; ++r) CHECK(right[r]);
  }
  CheckDefaultState();
}

TEST_CASE("merge_call runs its function once in cross-replica context", "[spec][LIB-04]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"});
  std::atomic<int> calls{0};

  const auto results = strategy.run([&] {
    return replica_context().merge_call(
        [&](Strategy& s, const PerReplica<int>& ids) {
          ++calls;
          const bool cross = &s == &strategy && get_cross_replica_context() == &strategy &&
                             get_replica_context() == nullptr;
          return cross ? ids[0] + ids[1] * 10 + ids[2] * 100 : -1;
        },
        replica_context().replica_id_in_sync_group() + 1);
  });

  CHECK(calls == 1);
  for (int r = 0; r < 3; ++r) CHECK(results[r] == 321);
}

TEST_CASE("merge_call works in the default replica context", "[spec][LIB-05]") {
  const std::string result = get_replica_context()->merge_call(
      [](Strategy& s, const PerReplica<std::string>& x) {
        return &s == &default_strategy() ? "foo_" + x[0] : "";
      },
      std::string("bar"));

  CHECK(result == "foo_bar");
  CheckDefaultState();
}

TEST_CASE("scopes of one strategy nest, the outermost exit ends it", "[spec][LIB-07]") {
  OneDeviceStrategy strategy("CPU:0");
  {
    const auto outer = strategy.scope();
    {
      const auto middle = strategy.scope();
      const auto inner = strategy.scope();
    }
    CHECK(&get_strategy() == &strategy);
  }
  CheckDefaultState();
}

TEST_CASE("scopes of two strategies do not nest", "[spec][LIB-08][LIB-22]") {
  MirroredStrategy one({"CPU:0", "CPU:1"});
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto scope = one.scope();

  CHECK(throws(ErrorCode::kFailedPrecondition, "Mixing different Strategy objects",
               [&] { const auto inner = two.scope(); }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "Must not nest",
               [&] { const auto inner = default_strategy().scope(); }));
  CHECK(&get_strategy() == &one);
}

TEST_CASE("a global strategy is current on threads without a scope", "[spec][LIB-10]") {
  MirroredStrategy one({"CPU:0", "CPU:1"});
  OneDeviceStrategy two("CPU:0");
  const auto current_elsewhere = [] {
    Strategy* seen = nullptr;
    std::thread([&] { seen = &get_strategy(); }).join();
    return seen;
  };

  set_global_strategy(&one);
  CHECK(current_elsewhere() == &one);
  CHECK(in_cross_replica_context());
  set_global_strategy(&two);
  CHECK(current_elsewhere() == &two);
  CHECK(&get_strategy() == &two);
  set_global_strategy(nullptr);
  CHECK(current_elsewhere() == &default_strategy());
  CheckDefaultState();
}

TEST_CASE("the global strategy cannot change inside a scope", "[spec][LIB-11]") {
  MirroredStrategy one({"CPU:0", "CPU:1"});
  OneDeviceStrategy two("CPU:0");
  const auto scope = one.scope();

  for (Strategy* strategy : {static_cast<Strategy*>(&one), static_cast<Strategy*>(&two),
                             static_cast<Strategy*>(nullptr)}) {
    CHECK(throws(ErrorCode::kFailedPrecondition, "Must not be called inside a Strategy scope",
                 [&] { set_global_strategy(strategy); }));
  }
}

TEST_CASE("a scope cannot close while a device scope inside it is open", "[spec][LIB-12]") {
  OneDeviceStrategy strategy("CPU:0");
  auto scope = strategy.scope();
  auto inner = std::make_unique<DeviceScope>("CPU:1");

  CHECK(
      throws(ErrorCode::kFailedPrecondition, "Device scope nesting error", [&] { scope.close(); }));
  CHECK(&get_strategy() == &strategy);
  inner.reset();
  scope.close();
  CheckDefaultState();
}

TEST_CASE("a scope that ends out of order ends when the inner one does", "[spec][LIB-12]") {
  OneDeviceStrategy strategy("CPU:0");
  auto scope = std::make_unique<Scope>(strategy.scope());
  auto inner = std::make_unique<DeviceScope>("CPU:1");

  scope.reset();
  CHECK(&get_strategy() == &strategy);
  inner.reset();
  CheckDefaultState();
}

TEST_CASE("a scope does not close on another thread nor ends one that is open there",
          "[spec][LIB-06]") {
  MirroredStrategy one({"CPU:0", "CPU:1"});
  OneDeviceStrategy two("CPU:0");
  std::promise<Scope*> opened;
  std::promise<void> tried;
  bool closed = false, refused = false, refused_inside = false, kept = false;
  // Two new threads, each with one scope.
  std::thread owner([&] {
    auto scope = one.scope();
    opened.set_value(&scope);
    tried.get_future().wait();
    scope.close();
    closed = !has_strategy();
  });
  std::thread other([&] {
    Scope* const foreign = opened.get_future().get();
    const auto refuses = [&] {
      return throws(ErrorCode::kFailedPrecondition, "was not opened on this thread",
                    [&] { foreign->close(); });
    };
    refused = refuses();
    {
      const auto own = two.scope();
      refused_inside = refuses();
      kept = &get_strategy() == &two;
    }
    tried.set_value();
  });
  owner.join();
  other.join();
  CHECK(refused);
  CHECK(refused_inside);
  CHECK(kept);
  CHECK(closed);
}

TEST_CASE("exceptions keep their kind through run and merge_call, nested either way",
          "[spec][LIB-17]") {
  for (const int replicas : {1, 2}) {
    std::vector<std::string> devices;
    for (int i = 0; i < replicas; ++i) devices.push_back("CPU:" + std::to_string(i));
    MirroredStrategy strategy(devices);
    const auto fail = [] { throw std::domain_error("ill"); };
    const auto in_merge = [&](auto body) {
      return [&, body] {
        replica_context().merge_call([&](Strategy&, const PerReplica<int>&) { body(); }, 1);
      };
    };

    CHECK_THROWS_AS(strategy.run(fail), std::domain_error);
    CHECK_THROWS_AS(strategy.run(in_merge(fail)), std::domain_error);
    CHECK_THROWS_AS(strategy.run(in_merge([&] { strategy.run(fail); })), std::domain_error);
    CHECK_THROWS_AS(strategy.run(in_merge([&] { strategy.run(in_merge(fail)); })),
                    std::domain_error);
    CheckDefaultState();
    CHECK(strategy.run([] { return 1; }).values() ==
          std::vector<int>(static_cast<std::size_t>(replicas), 1));
  }
}

TEST_CASE("a strategy cannot be copied", "[spec][LIB-18]") {
  static_assert(!std::is_copy_constructible_v<MirroredStrategy>);
  static_assert(!std::is_copy_assignable_v<OneDeviceStrategy>);
  SUCCEED("it does not compile");
}

template <class F, class... Args>
concept CanRun = requires(Strategy& strategy, F fn, const Args&... args) {
  strategy.run(fn, args...);
  strategy.run(RunOptions(), fn, args...);
};

// GPUs have a test of their own (gpu_test.cc); the workers of a cluster are processes
// (multi_worker_mirrored/processes_test.cc).
TEST_CASE("without devices MirroredStrategy takes the CPU of this machine", "[spec][MIR-01]") {
  MirroredStrategy strategy;
  CHECK(strategy.num_replicas_in_sync() == 1);
  REQUIRE(strategy.worker_devices().size() == 1);
  CHECK(device::ParsePlace(strategy.worker_devices()[0])->index == 0);
  CHECK(strategy.run([] { return replica_context().replica_id_in_sync_group(); }).values() ==
        std::vector<int>{0});
}

std::string TfConfig(const std::string& cluster, const std::string& task) {
  return R"({"cluster": )" + cluster + (task.empty() ? "" : R"(, "task": )" + task) + "}";
}

TEST_CASE(
    "a MirroredStrategy has this process alone where it names devices, and where TF_CONFIG has no "
    "other workers for it",
    "[spec][MIR-01]") {
  const std::string workers = R"({"worker": ["a:1", "b:1"]})";
  const std::string first = R"({"type": "worker", "index": 0})";
  {
    const EnvironmentVariables variables({{"TF_CONFIG", TfConfig(workers, first)}});
    MirroredStrategy named({"CPU:0", "CPU:1"});
    CHECK(named.num_replicas_in_sync() == 2);
    CHECK(named.collectives() == nullptr);
    CHECK(named.cluster_resolver() == nullptr);
  }
  const std::vector<EnvironmentVariables::Values> alone{
      {{"TF_CONFIG", TfConfig(R"({"worker": ["a:1", "b:1"], "ps": ["c:1"]})", first)}},
      {{"TF_CONFIG", TfConfig(R"({"worker": ["a:1", "b:1"], "evaluator": ["c:1"]})",
                              R"({"type": "evaluator", "index": 0})")}},
      {{"TF_CONFIG", TfConfig(R"({"worker": ["a:1"]})", "")}},
      {{"TF_CONFIG", TfConfig("{}", first)}},
      {{"TF_CONFIG", TfConfig(workers, first)}, {"MUSTER_ROLE", "executor"}}};
  for (const EnvironmentVariables::Values& values : alone) {
    CAPTURE(values.at("TF_CONFIG"));
    const EnvironmentVariables variables(values);
    MirroredStrategy strategy;
    CHECK(strategy.num_replicas_in_sync() == 1);
    CHECK(strategy.collectives() == nullptr);
    CHECK(strategy.should_checkpoint());
  }
}

TEST_CASE("a MirroredStrategy without devices refuses a cluster that does not say who this is",
          "[spec][MIR-01]") {
  const auto refused = [](const std::string& task, const std::string& part) {
    const EnvironmentVariables variables(
        {{"TF_CONFIG", TfConfig(R"({"worker": ["a:1", "b:1"]})", task)}});
    return throws(ErrorCode::kInvalidArgument, part, [] { const MirroredStrategy strategy; });
  };
  CHECK(refused("", "you must also specify task_type and task_id"));
  CHECK(refused(R"({"type": "worker", "index": 2})", "task_id 2"));
}

TEST_CASE("a device may be named with the task that this process is, and with no other one",
          "[strategy][unit]") {
  const std::string workers = R"({"worker": ["a:1", "b:1"], "ps": ["c:1"]})";
  {
    const EnvironmentVariables variables(
        {{"TF_CONFIG", TfConfig(workers, R"({"type": "worker", "index": 1})")}});
    OneDeviceStrategy strategy("/job:worker/replica:0/task:1/device:CPU:1");
    CHECK(strategy.worker_devices() == OneDeviceStrategy("CPU:1").worker_devices());
    CHECK(OneDeviceStrategy("/job:worker/task:1").worker_devices() ==
          OneDeviceStrategy("CPU:0").worker_devices());
    const auto refused = [](const std::string& name, const std::string& part) {
      return throws(ErrorCode::kInvalidArgument, part,
                    [&] { const OneDeviceStrategy elsewhere(name); });
    };
    CHECK(refused("/job:worker/task:0/device:CPU:0", "is one of worker:0, and this process is"));
    CHECK(refused("/job:worker/task:7", "worker:1 (TF_CONFIG has ps:0, worker:0, worker:1)"));
    CHECK(throws(ErrorCode::kInvalidArgument, "is one of ps:0", [] {
      const MirroredStrategy elsewhere({"CPU:0", "/job:ps/task:0/device:CPU:0"});
    }));
  }
  CHECK(throws(ErrorCode::kInvalidArgument, "this process is no task (TF_CONFIG has no tasks)",
               [] { const OneDeviceStrategy elsewhere("/job:worker/task:1/device:CPU:0"); }));
}

TEST_CASE("run() takes the arguments of its function one by one", "[spec][LIB-14]") {
  using Two = int (*)(int, int);
  static_assert(CanRun<Two, int, PerReplica<int>>);
  static_assert(!CanRun<Two, std::vector<int>>);
  static_assert(!CanRun<Two, std::string, int>);
  static_assert(!CanRun<Two, int>);
  static_assert(!CanRun<Two, int, int, int>);
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  CHECK(strategy.run([](int a, int b) { return a * b; }, 3, PerReplica<int>({4, 5})).values() ==
        std::vector<int>{12, 15});
}

TEST_CASE("an argument has a component for each replica, in nests too", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  std::atomic<int> calls{0};
  const auto refused = [&](const auto& argument) {
    return throws(ErrorCode::kInvalidArgument, "a strategy of 2 replicas",
                  [&] { strategy.run([&](const auto&) { ++calls; }, argument); });
  };
  const PerReplica<int> one({1});
  const PerReplica<int> two({1, 2});
  const PerReplica<int> three({1, 2, 3});
  const Mirrored<int> copies({7, 7, 7});
  CHECK(refused(three));
  CHECK(refused(copies));
  CHECK(refused(std::tuple{two, three}));
  CHECK(refused(std::pair{two, one}));
  CHECK(refused(std::vector{two, three}));
  CHECK(refused(std::map<std::string, std::vector<PerReplica<int>>>{{"a", {two}}, {"b", {three}}}));
  CHECK(refused(std::tuple{copies}));
  CHECK(calls == 0);

  const auto sums = strategy.run(
      [](const std::tuple<int, int>& parts) { return std::get<0>(parts) + std::get<1>(parts); },
      std::tuple{Mirrored<int>({10}), Mirrored<int>({1, 2})});
  CHECK(sums.values() == std::vector<int>{11, 12});
}

// A strategy of a cluster, as far as its resolver goes.
class ClusterStrategy final : public Strategy {
 public:
  explicit ClusterStrategy(std::shared_ptr<ClusterResolver> resolver)
      : Strategy({device::Place{}}, {device::Place{}}), resolver_(std::move(resolver)) {}
  std::string_view name() const override { return "ClusterStrategy"; }
  std::shared_ptr<ClusterResolver> cluster_resolver() const override { return resolver_; }

 private:
  std::shared_ptr<ClusterResolver> resolver_;
};

TEST_CASE("a strategy and its extended part have one cluster resolver, or none", "[spec][LIB-15]") {
  MirroredStrategy alone({"CPU:0", "CPU:1"});
  const auto resolver = std::make_shared<SimpleClusterResolver>(ClusterSpec());
  ClusterStrategy in_cluster(resolver);

  CHECK(default_strategy().cluster_resolver() == nullptr);
  CHECK(alone.cluster_resolver() == nullptr);
  CHECK(alone.extended().cluster_resolver() == nullptr);
  CHECK(in_cluster.cluster_resolver() == resolver);
  CHECK(in_cluster.extended().cluster_resolver() == resolver);
}

TEST_CASE("the default strategy has no devices to name", "[spec][LIB-19]") {
  CHECK(testing::code_of([] { (void)default_strategy().worker_devices(); }) ==
        ErrorCode::kFailedPrecondition);
  CHECK(testing::code_of([] { (void)default_strategy().parameter_devices(); }) ==
        ErrorCode::kFailedPrecondition);
}

TEST_CASE("cross-replica calls inside a replica function are refused", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const PerReplica<torch::Tensor> value({torch::ones({2}), torch::ones({2})});
  const auto refused = [&](const std::string& text, const std::function<void()>& call) {
    return throws(ErrorCode::kFailedPrecondition, text, [&] { strategy.run(call); });
  };

  CHECK(refused("requires cross-replica context, use merge_call",
                [&] { strategy.reduce(ReduceOp::kSum, value); }));
  CHECK(refused("use all_gather", [&] { strategy.gather(value, 0); }));
  CHECK(refused("requires cross-replica context", [&] { strategy.run([] {}); }));
  CHECK(refused("requires cross-replica context", [&] { const auto s = strategy.scope(); }));
  CHECK(strategy.reduce(ReduceOp::kSum, value).sum().item<float>() == 4);

  OneDeviceStrategy other("CPU:0");
  const auto scope = other.scope();
  CHECK(throws(ErrorCode::kFailedPrecondition, "Mixing different Strategy objects",
               [&] { strategy.reduce(ReduceOp::kSum, value); }));
}

TEST_CASE("a replica context serves its own replica, thread and strategy only", "[spec][LIB-21]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  OneDeviceStrategy other("CPU:0");
  std::vector<ReplicaContext*> contexts(2);
  std::atomic<int> known{0}, mismatches{0};
  bool outside = false;
  const auto merge = [](ReplicaContext& context) {
    context.merge_call([](Strategy&, const PerReplica<int>&) {}, 1);
  };

  strategy.run([&] {
    const int id = replica_context().replica_id_in_sync_group();
    contexts[static_cast<std::size_t>(id)] = &replica_context();
    ++known;
    while (known.load() < 2) std::this_thread::yield();
    if (throws(ErrorCode::kFailedPrecondition, "Mismatching ReplicaContext",
               [&] { merge(*contexts[static_cast<std::size_t>(1 - id)]); })) {
      ++mismatches;
    }
    replica_context().merge_call(
        [&](Strategy&, const PerReplica<int>&) {
          outside = throws(ErrorCode::kFailedPrecondition, "Need to be inside",
                           [&] { merge(*contexts[0]); });
        },
        1);
  });
  CHECK(mismatches == 2);
  CHECK(outside);
  other.run([&] {
    ReplicaContext foreign(strategy, 0, nullptr);
    CHECK(throws(ErrorCode::kFailedPrecondition, "Mismatching Strategy", [&] { merge(foreign); }));
  });
}

TEST_CASE("merge_call can use what all replicas bring", "[spec][LIB-24]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});

  const auto result = strategy.run([] {
    const int v = 3 + replica_context().replica_id_in_sync_group();
    const int sum = replica_context().merge_call(
        [](Strategy&, const PerReplica<int>& all) { return all[0] + all[1]; }, v);
    return sum + v;
  });

  CHECK(result.values() == std::vector<int>{10, 11});
}

TEST_CASE("single-machine strategies checkpoint, write summaries and take dynamic shapes",
          "[spec][LIB-25]") {
  MirroredStrategy mirrored({"CPU:0", "CPU:1"});
  OneDeviceStrategy one("CPU:1");
  CentralStorageStrategy central({"CPU:0", "CPU:1"});
  for (const Strategy* strategy : std::vector<Strategy*>{&mirrored, &one, &central}) {
    CHECK(strategy->should_checkpoint());
    CHECK(strategy->should_save_summary());
    CHECK_FALSE(strategy->require_static_shapes());
  }
}

}  // namespace
}  // namespace muster
