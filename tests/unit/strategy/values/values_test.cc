// Values with components, regrouped and selected; reductions by name and by place.
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "strategy/core/default_strategy.h"
#include "strategy/kinds/central_storage_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/values/device_of.h"
#include "strategy/values/regroup.h"
#include "strategy/values/sparse.h"
#include "strategy/variables/extended.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/replicas.h"

namespace muster {
namespace {

using std::string;
using testing::cpu;
using testing::cpus;
using testing::id;
using testing::throws;

using Nest = std::tuple<string, std::vector<string>, std::map<string, string>>;

Nest NestOf(const string& r) { return {"a" + r, {"b" + r, "c" + r}, {{"d", "e" + r}}}; }

TEST_CASE("equal nests regroup leaf by leaf, and each replica's comes back",
          "[spec][VAL-01][VAL-02]") {
  for (const int n : {1, 2, 3}) {
    std::vector<Nest> nests;
    for (int r = 1; r <= n; ++r) nests.push_back(NestOf(std::to_string(r)));

    const auto regrouped = regroup(nests);

    static_assert(std::is_same_v<std::remove_const_t<decltype(regrouped)>,
                                 std::tuple<PerReplica<string>, std::vector<PerReplica<string>>,
                                            std::map<string, PerReplica<string>>>>);
    for (int r = 0; r < n; ++r) {
      const string id = std::to_string(r + 1);
      CHECK(std::get<0>(regrouped)[r] == "a" + id);
      CHECK(std::get<1>(regrouped)[0][r] == "b" + id);
      CHECK(std::get<1>(regrouped)[1][r] == "c" + id);
      CHECK(std::get<2>(regrouped).at("d")[r] == "e" + id);
      CHECK((select_replica(r, regrouped) == nests[static_cast<std::size_t>(r)]));
    }
  }
  const std::vector<std::vector<int>> uneven{{1}, {1, 2}};
  CHECK(throws(ErrorCode::kInternal, "replica 1 returned another structure",
               [&] { regroup(uneven); }));
}

template <class T>
concept SelectsMirrored = requires(const T& value) { select_replica_mirrored(0, value); };

TEST_CASE("only mirrored values are selected as mirrored", "[spec][VAL-03]") {
  static_assert(!SelectsMirrored<PerReplica<string>>);
  static_assert(!SelectsMirrored<std::tuple<PerReplica<string>, PerReplica<string>>>);
  static_assert(!SelectsMirrored<std::tuple<Mirrored<string>, PerReplica<string>>>);
  CHECK(select_replica_mirrored(1, Mirrored<string>({"x", "y"})) == "y");
  const std::tuple nest(Mirrored<string>({"x", "y"}), Mirrored<int>({1, 2}));
  CHECK((select_replica_mirrored(1, nest) == std::tuple(string("y"), 2)));
}

TEST_CASE("components that are one object are known as such", "[spec][VAL-04][VAL-05]") {
  const torch::Tensor shared = torch::ones({2});
  using Pair = std::tuple<torch::Tensor, torch::Tensor>;

  // VAL-04: one replica's nest is itself.
  const auto alone = regroup(std::vector<Pair>{{shared, torch::zeros({2})}});
  CHECK(std::get<0>(alone).same_object());
  CHECK(std::get<0>(alone).size() == 1);
  CHECK(std::get<0>(alone)[0].is_same(shared));
  // VAL-05: the first leaf is one object on both, the second is not.
  const auto two =
      regroup(std::vector<Pair>{{shared, torch::zeros({2})}, {shared, torch::zeros({2})}});
  CHECK(std::get<0>(two).same_object());
  CHECK_FALSE(std::get<1>(two).same_object());
}

TEST_CASE("components of a variable regroup to the variable", "[spec][VAL-06]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", 1.0);
  const Variable w = Variable::create("w", 1.0);

  const auto regrouped = regroup(std::vector<Variable>{v.component(0), v.component(1)});

  static_assert(std::is_same_v<std::remove_const_t<decltype(regrouped)>, Variable>);
  CHECK(regrouped.is_same(v));
  CHECK(throws(ErrorCode::kInvalidArgument, "components of one variable",
               [&] { regroup(std::vector<Variable>{v.component(0), w.component(1)}); }));
}

TEST_CASE("a distributed variable is reduced to values on its devices", "[spec][XDO-07]") {
  MirroredStrategy strategy(cpus(3, 1));
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", 1.0);
  const std::vector<std::shared_ptr<CrossDeviceOps>> all{std::make_shared<CollectiveAllReduce>(),
                                                         std::make_shared<ReductionToOneDevice>()};
  for (const auto& ops : all) {
    const auto result = ops->reduce(ReduceOp::kMean, v, v);
    static_assert(std::is_same_v<decltype(result), const Mirrored<torch::Tensor>>);
    REQUIRE(result.size() == 3);
    for (int i = 0; i < 3; ++i) {
      CHECK(result[i].item<double>() == 1);
      CHECK(muster::device_of(result[i]) == cpu(i + 1));
    }
    CHECK(ops->reduce(ReduceOp::kSum, v, "CPU:0")[0].item<double>() == 3);
  }
}

TEST_CASE("two tuples make a tuple of pairs", "[spec][VAL-07]") {
  using Two = std::tuple<string, string>;

  const auto [first, second] = regroup(std::vector<Two>{{"1", "2"}, {"3", "4"}});

  CHECK(first.values() == std::vector<string>{"1", "3"});
  CHECK(second.values() == std::vector<string>{"2", "4"});
}

TEST_CASE("values from a function of the replica", "[spec][VAL-08][VAL-09][VAL-10][VAL-11]") {
  for (const int n : {1, 2, 4}) {
    MirroredStrategy strategy(cpus(n, 0));
    // VAL-08
    const auto ones =
        strategy.distribute_values_from_function([](ValueContext) { return torch::ones({1}); });
    CHECK(strategy.gather(ones, 0).equal(torch::ones({n})));
    // VAL-09
    const auto tuple = strategy.distribute_values_from_function([](ValueContext ctx) {
      const int id = ctx.replica_id_in_sync_group;
      return std::tuple(1 * id, 2 * id, 3 * id);
    });
    // VAL-10
    std::vector<int> array, squares;
    for (int i = 0; i < n; ++i) {
      CHECK((strategy.local_results(tuple)[static_cast<std::size_t>(i)] ==
             std::tuple(i, 2 * i, 3 * i)));
      array.push_back(i);
      squares.push_back(i * i);
    }
    const auto numbers = strategy.distribute_values_from_function([&](ValueContext ctx) {
      return array[static_cast<std::size_t>(ctx.replica_id_in_sync_group)];
    });
    CHECK(strategy.run([](int x) { return x * x; }, numbers).values() == squares);
    // VAL-11
    std::vector<int> ids, counts(static_cast<std::size_t>(n), n);
    const auto seen = strategy.distribute_values_from_function([&](ValueContext ctx) {
      ids.push_back(ctx.replica_id_in_sync_group);
      return ctx.num_replicas_in_sync;
    });
    CHECK(ids == array);
    CHECK(seen.values() == counts);
  }
}

TEST_CASE("a value function may make sparse values", "[spec][VAL-12]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto sparse = strategy.distribute_values_from_function([](ValueContext) {
    return torch::sparse_coo_tensor(torch::tensor({{0, 1}, {0, 2}}), torch::tensor({1, 2}), {3, 4});
  });

  for (const torch::Tensor& value : strategy.local_results(sparse)) {
    CHECK(value.to_dense().equal(torch::tensor({{1, 0, 0, 0}, {0, 0, 2, 0}, {0, 0, 0, 0}})));
  }
}

TEST_CASE("values lie on the default device unless they are placed", "[spec][VAL-13]") {
  MirroredStrategy strategy(cpus(2, 1));
  const auto unplaced =
      strategy.distribute_values_from_function([](ValueContext) { return torch::ones({2}); });
  const auto placed = strategy.distribute_values_from_function([&](ValueContext ctx) {
    const DeviceScope device(
        strategy.worker_devices()[static_cast<std::size_t>(ctx.replica_id_in_sync_group)]);
    return torch::ones({2});
  });

  for (int r = 0; r < 2; ++r) {
    CHECK(muster::device_of(unplaced[r]) == cpu(0));
    CHECK(muster::device_of(placed[r]) == cpu(r + 1));
  }
}

TEST_CASE("a PerReplica has no single value outside a replica context", "[spec][VAL-14]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto value = strategy.run(id);

  CHECK(throws(ErrorCode::kInvalidArgument, "not inside a replica context", [&] { value.get(); }));
  {
    const auto scope = strategy.scope();
    CHECK(
        throws(ErrorCode::kInvalidArgument, "not inside a replica context", [&] { value.get(); }));
  }
  CHECK(strategy.run([&] { return value.get() * 10; }).values() == std::vector<int>{0, 10});
}

TEST_CASE("a value context says which replica of how many", "[spec][VAL-16]") {
  const ValueContext context{2, 4};
  CHECK(static_cast<double>(context.replica_id_in_sync_group) / context.num_replicas_in_sync ==
        0.5);
  const ValueContext standard;
  CHECK(standard.replica_id_in_sync_group == 0);
  CHECK(standard.num_replicas_in_sync == 1);
  CHECK(context.to_string() == "ValueContext(replica 2 of 4)");
}

TEST_CASE("a reduce op may be given by name wherever an op is", "[spec][RED-01]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto value = strategy.run([] { return static_cast<double>(2 * id() + 1); });
  using Pair = std::pair<PerReplica<torch::Tensor>, Destinations>;
  const PerReplica<torch::Tensor> tensors({torch::tensor(1.0), torch::tensor(3.0)});

  for (const auto& [name, expected] :
       std::vector<std::pair<string, double>>{{"mean", 2}, {"MEAN", 2}, {"sum", 4}, {"SUM", 4}}) {
    CHECK(strategy.reduce(name, value).item<double>() == expected);
    CHECK(strategy.reduce(reduce_op(name), value).item<double>() == expected);
    CHECK(strategy.extended().reduce_to(name, value, "CPU:1")[0].item<double>() == expected);
    if (reduce_op(name) == ReduceOp::kMean) {
      CHECK(strategy.reduce(name, Mirrored<torch::Tensor>(tensors.values())).item<double>() == 1);
    }
    const auto batch =
        strategy.extended().batch_reduce_to(name, std::vector<Pair>{{tensors, "CPU:1"}});
    CHECK(batch[0][0].item<double>() == expected);
  }
}

TEST_CASE("a reduced value lies on the current device", "[spec][RED-21]") {
  MirroredStrategy strategy(cpus(2, 1));
  const auto value = strategy.run([] { return torch::ones({1000}); });
  CHECK(muster::device_of(value[0]) == cpu(1));

  CHECK(muster::device_of(strategy.reduce(ReduceOp::kSum, value)) == cpu(0));
  CHECK(muster::device_of(strategy.reduce(ReduceOp::kSum, value, 0)) == cpu(0));
  {
    const DeviceScope device("CPU:5");
    CHECK(muster::device_of(strategy.reduce(ReduceOp::kMean, value)) == cpu(5));
  }
  // In a merge call it does not matter which replica came last.
  strategy.run([] {
    replica_context().merge_call(
        [](Strategy& s, const PerReplica<torch::Tensor>& all) {
          CHECK(muster::device_of(s.reduce(ReduceOp::kSum, all)) == cpu(0));
        },
        torch::ones({10}));
  });
}

TEST_CASE("large values are reduced in slices by the replicas' threads", "[strategy][unit]") {
  for (const int n : {1, 2, 3, 4}) {
    MirroredStrategy strategy(cpus(n, 0));
    const auto value = strategy.run([] { return torch::arange(300001.0) * (id() + 1); });
    const torch::Tensor sum = torch::arange(300001.0) * (n * (n + 1) / 2);

    CHECK(strategy.reduce(ReduceOp::kSum, value).equal(sum));
    CHECK(strategy.reduce(ReduceOp::kMean, value).allclose(sum / n));
    // Also in a merge call, where the replicas' own threads wait.
    const auto merged = strategy.run(
        [](const torch::Tensor& mine) {
          return replica_context().merge_call(
              [](Strategy& s, const PerReplica<torch::Tensor>& all) {
                return s.reduce(ReduceOp::kSum, all);
              },
              mine);
        },
        value);
    CHECK(merged[0].equal(sum));
  }
}

TEST_CASE("a reduced value keeps its gradient", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2, 0));
  const torch::Tensor x = torch::ones({3}, torch::requires_grad());

  const auto value = strategy.run([&] { return x * (id() + 1); });
  strategy.reduce(ReduceOp::kSum, value).sum().backward();

  CHECK(x.grad().equal(torch::full({3}, 3.0f)));
}

TEST_CASE("sparse values of replicas are reduced", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto slices = strategy.run([] {
    return IndexedSlices{torch::full({1, 2}, id() + 1.0f), torch::tensor({id()}),
                         std::vector<std::int64_t>{4, 2}};
  });

  const IndexedSlices sum = strategy.reduce(ReduceOp::kSum, slices);
  CHECK(to_dense(sum).sum().item<float>() == 6);
  CHECK(sum.indices.equal(torch::tensor({0, 1})));
  CHECK(to_dense(strategy.reduce(ReduceOp::kMean, slices)).sum().item<float>() == 3);
  CHECK(throws(ErrorCode::kUnimplemented, "IndexedSlices",
               [&] { strategy.reduce(ReduceOp::kSum, slices, 0); }));
}

TEST_CASE("central storage: where variables live", "[spec][CEN-01][CEN-02]") {
  // CEN-01
  CentralStorageStrategy none;
  CHECK(none.worker_devices() == std::vector<string>{cpu(0)});
  CHECK(none.parameter_devices() == none.worker_devices());
  CentralStorageStrategy one({"CPU:3"});
  CHECK(one.worker_devices() == std::vector<string>{cpu(3)});
  CHECK(one.parameter_devices() == one.worker_devices());
  // CEN-02
  CentralStorageStrategy two({"CPU:1", "CPU:2"});
  CHECK(two.worker_devices() == std::vector<string>{cpu(1), cpu(2)});
  CHECK(two.parameter_devices() == std::vector<string>{cpu(0)});
  CHECK(two.run([] { return muster::device_of(torch::ones({1})); }).values() ==
        two.worker_devices());
}

TEST_CASE("central storage reduces and gathers like any strategy of N replicas", "[spec][CEN-07]") {
  CentralStorageStrategy strategy(cpus(2, 0));
  const auto value = strategy.run([] { return torch::full({id() + 1}, id() + 1.0f); });
  const auto number = strategy.run([] { return id() + 1.0; });

  CHECK(strategy.num_replicas_in_sync() == 2);
  CHECK(strategy.reduce(ReduceOp::kSum, number).item<double>() == 3);
  CHECK(strategy.reduce(ReduceOp::kMean, value, 0).item<float>() == Approx(5.0 / 3));
  CHECK(strategy.gather(value, 0).equal(torch::tensor({1.0f, 2.0f, 2.0f})));
  CHECK(strategy.local_results(number) == std::vector<double>{1, 2});
  const auto sums = strategy.run(
      [](double x) {
        return replica_context().all_reduce(ReduceOp::kSum, torch::tensor(x)).item<double>();
      },
      number);
  CHECK(sums.values() == std::vector<double>{3, 3});
}

TEST_CASE("cross-replica calls inside a replica function are refused, outside a scope allowed",
          "[spec][LIB-20]") {
  MirroredStrategy strategy(cpus(2, 0));
  const PerReplica<torch::Tensor> value({torch::ones({2}), torch::ones({2})});
  using Pair = std::pair<PerReplica<torch::Tensor>, Destinations>;
  const std::vector<Pair> batch{{value, "CPU:0"}};
  const auto refused = [&](const string& text, const std::function<void()>& call) {
    return throws(ErrorCode::kFailedPrecondition, text, [&] { strategy.run(call); });
  };
  const string text = "requires cross-replica context, use merge_call";

  CHECK(refused(text, [&] { strategy.reduce(ReduceOp::kSum, value); }));
  CHECK(refused("requires cross-replica context, use all_gather",
                [&] { strategy.gather(value, 0); }));
  CHECK(refused(text, [&] { strategy.extended().reduce_to(ReduceOp::kSum, value, "CPU:0"); }));
  CHECK(refused(text, [&] { strategy.extended().batch_reduce_to(ReduceOp::kSum, batch); }));
  CHECK(refused(text, [&] { strategy.run([] {}); }));
  CHECK(refused(text, [&] { const auto scope = strategy.scope(); }));
  // Outside any scope.
  CHECK(strategy.reduce(ReduceOp::kSum, value).sum().item<float>() == 4);
  CHECK(strategy.gather(value, 0).size(0) == 4);
  CHECK(strategy.extended().reduce_to(ReduceOp::kSum, value, "CPU:0").size() == 1);
  CHECK(strategy.extended().batch_reduce_to(ReduceOp::kSum, batch).size() == 1);
  // Inside another strategy's scope.
  OneDeviceStrategy other("CPU:0");
  const auto scope = other.scope();
  CHECK(throws(ErrorCode::kFailedPrecondition, "Mixing different Strategy objects",
               [&] { strategy.reduce(ReduceOp::kSum, value); }));
}

}  // namespace
}  // namespace muster
