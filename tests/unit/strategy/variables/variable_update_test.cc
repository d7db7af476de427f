// Extended: updates component by component, reductions to a variable's devices, containers.
#include <cmath>
#include <limits>

#include "strategy/core/default_strategy.h"
#include "strategy/values/sparse.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/variables/variable_support.h"

namespace muster {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the vocabulary of these tests

TEST_CASE("update() in a replica context", "[spec][VAR-36]") {
  const auto assign = [](const Variable& v, double x) { return v.assign(x); };
  const auto add = [](const Variable& v, double x) { return v.assign_add(x); };
  const auto sub = [](const Variable& v, double x) { return v.assign_sub(x); };
  const auto check = [](Strategy& strategy, auto fn, double expected) {
    for (const auto aggregation : {kNone, kMean}) {
      const Variable v = on_write(strategy, 5.0, aggregation);
      const auto read = strategy.run([&] {
        auto extended = replica_context().strategy().extended();
        extended.update(v, fn, 2.0);
        extended.update(v, fn, 1.0);
        return v.value();
      });
      for (const double value : numbers(read)) CHECK(value == expected);
      for (const double value : numbers(v)) CHECK(value == expected);
    }
  };
  MirroredStrategy mirrored(cpus(2));
  CentralStorageStrategy central(cpus(2));
  OneDeviceStrategy one("CPU:1");
  for (Strategy* strategy : std::vector<Strategy*>{&mirrored, &central, &one}) {
    check(*strategy, assign, 1);
    check(*strategy, add, 8);
    check(*strategy, sub, 2);
  }
}

TEST_CASE("reduce to a variable, then update it, in a merge call", "[spec][VAR-40]") {
  const auto check = [](Strategy& strategy, double expected) {
    for (const bool batch : {false, true}) {
      const Variable v = on_write(strategy, 0.0, kNone);
      strategy.run([&] {
        replica_context().merge_call(
            [&](Strategy& s, const PerReplica<double>& ones) {
              auto extended = s.extended();
              using Pairs = std::vector<std::pair<PerReplica<double>, Destinations>>;
              const Mirrored<torch::Tensor> sum =
                  batch ? extended.batch_reduce_to(ReduceOp::kSum, Pairs{{ones, v}})[0]
                        : extended.reduce_to(ReduceOp::kSum, ones, v);
              CHECK(Destinations(sum).devices() == v.devices());
              extended.update(
                  v,
                  [](const Variable& component, const torch::Tensor& x) {
                    CHECK(muster::device_of(x) == component.device());
                    component.assign(x);
                  },
                  sum);
            },
            1.0);
      });
      CHECK(numbers(v) == times(v.size(), expected));
    }
  };
  MirroredStrategy two(cpus(2));
  MirroredStrategy three(cpus(3));
  CentralStorageStrategy central(cpus(2));
  OneDeviceStrategy one("CPU:1");
  check(two, 2);
  check(three, 3);
  check(central, 2);
  check(one, 1);
}

TEST_CASE("what update() returns, takes and refuses", "[spec][VAR-41]") {
  MirroredStrategy strategy(cpus(2));
  CentralStorageStrategy central(cpus(2), "CPU:4");
  const Variable v = on_write(strategy, 0.0, kMean);
  const Variable c = on_write(central, 0.0, kMean);
  auto extended = strategy.extended();
  const auto where = [](const Variable& component) {
    const bool there = muster::device_of(torch::ones({1})) == component.device();
    return there ? *get_update_replica_id() : -1;
  };

  CHECK_FALSE(get_update_replica_id().has_value());
  const Mirrored<int> grouped = extended.update(v, where);
  CHECK(grouped.values() == std::vector<int>{0, 1});
  const std::vector<int> ungrouped = extended.update(kUngrouped, v, where);
  CHECK(ungrouped == std::vector<int>{0, 1});
  static_assert(std::is_void_v<decltype(extended.update(v, [](const Variable&) {}))>);

  // A Mirrored, and a variable, come component by component.
  const Mirrored<torch::Tensor> parts({own(10), own(20)});
  const Variable other = on_write(strategy, 0.0, kNone);
  strategy.run([&] { other.assign(1 + id()); });
  const auto sums = extended.update(
      v, [](const Variable&, const torch::Tensor& a, const Variable& b) { return a + b; }, parts,
      other);
  CHECK(number(sums[0]) == 11);
  CHECK(number(sums[1]) == 22);
  CHECK(throws(ErrorCode::kInvalidArgument, "a PerReplica argument must be reduced first",
               [&] { extended.update(v, [](const Variable&, int) {}, PerReplica<int>({1, 2})); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "created under another strategy",
               [&] { extended.update(c, where); }));

  // A whole variable in its own update is the component.
  extended.update(v, [&](const Variable&) { v.assign_add(*get_update_replica_id() + 1); });
  CHECK(numbers(v) == std::vector<double>{1, 2});

  int runs = 0;
  const auto once = [&](const Variable& component, double x) {
    ++runs;
    CHECK(muster::device_of(torch::ones({1})) == cpu(4));
    component.assign_add(x);
    return *get_update_replica_id();
  };
  CHECK(central.extended().update(c, once, 3.0).values() == std::vector<int>{0});
  CHECK(runs == 1);
  const auto in_replicas =
      central.run([&] { return central.extended().update(c, once, 3.0).get(); });
  CHECK(runs == 2);
  CHECK(in_replicas.values() == std::vector<int>{0, 0});
  CHECK(number(c) == 6);
  CHECK(throws(ErrorCode::kInvalidArgument, "replica 1 came with other arguments",
               [&] { central.run([&] { central.extended().update(c, once, 1.0 + id()); }); }));
  central.run([&] {  // equal tensors, each replica's own: what an all_reduce gives
    central.extended().update(
        c, [](const Variable& component, const torch::Tensor& x) { component.assign(x); }, own(9));
  });
  CHECK(number(c) == 9);

  const auto own_ids = strategy.run([&] { return extended.update(v, where).get(); });
  CHECK(own_ids.values() == std::vector<int>{0, 1});
}

TEST_CASE("whose variable it is", "[spec][VAR-43]") {
  MirroredStrategy strategy(cpus(2));
  OneDeviceStrategy other("CPU:1");
  const Variable outside = Variable::create("v", 1.0);
  const Variable mine = on_write(strategy, 1.0, kNone);

  CHECK(strategy.extended().variable_created_in_scope(mine));
  CHECK(strategy.extended().variable_created_in_scope(mine.component(1)));
  CHECK_FALSE(strategy.extended().variable_created_in_scope(outside));
  CHECK_FALSE(strategy.extended().variable_created_in_scope(on_write(other, 1.0, kNone)));
  CHECK(default_strategy().extended().variable_created_in_scope(outside));
}

TEST_CASE("the container of a component, and the value across replicas", "[spec][VAR-44]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_read(strategy, 0.0, kSum);
  const Variable plain = Variable::create("v", 4.0);
  strategy.run([&] { v.assign(3 + id()); });

  CHECK(strategy.extended().value_container(v.component(1)).is_same(v));
  CHECK(strategy.extended().value_container(v).is_same(v));
  CHECK(strategy.extended().value_container(plain).is_same(plain));
  CHECK(number(strategy.extended().read_var(v)) == 7);
  CHECK(number(strategy.extended().read_var(plain)) == 4);
  CHECK(number(strategy.run([&] { return strategy.extended().read_var(v); })[1]) == 7);
}

TEST_CASE("reductions to devices take operations by name", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const auto values = strategy.run([] { return torch::full({2}, id() + 1.0); });
  const auto sum =
      strategy.extended().reduce_to("sum", values, std::vector<std::string>{"CPU:3", "CPU:0"});
  CHECK(sum.size() == 2);
  CHECK(list(sum[1]) == std::vector<double>{3, 3});
  CHECK(muster::device_of(sum[0]) == cpu(3));
  CHECK(muster::device_of(sum[1]) == cpu(0));
  CHECK(list(strategy.extended().reduce_to("MEAN", values, "CPU:2")[0]) ==
        std::vector<double>{1.5, 1.5});
}

TEST_CASE("a Mirrored of one component goes to all components of a variable and to all replicas",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  CentralStorageStrategy central(cpus(2), "CPU:4");
  const Variable v = on_write(strategy, 1.0, kNone);
  const Variable c = on_write(central, 1.0, kNone);
  const auto add = [](const Variable& component, const torch::Tensor& x) {
    component.assign_add(x);
  };
  const Mirrored<torch::Tensor> one({own(5)});
  const Mirrored<torch::Tensor> two({own(5), own(6)});
  const Mirrored<torch::Tensor> three({own(5), own(6), own(7)});

  strategy.extended().update(v, add, one);
  CHECK(numbers(v) == std::vector<double>{6, 6});
  strategy.run([&] { strategy.extended().update(v, add, one); });
  CHECK(numbers(v) == std::vector<double>{11, 11});
  strategy.extended().update(v.component(1), add, two);
  CHECK(numbers(v) == std::vector<double>{11, 17});
  CHECK(throws(ErrorCode::kInvalidArgument, "has 2 components: a Mirrored argument has 3",
               [&] { strategy.extended().update(v, add, three); }));
  CHECK(numbers(v) == std::vector<double>{11, 17});
  // The one component takes the first copy, on however many devices there are some.
  central.extended().update(c, add, two);
  CHECK(number(c) == 6);

  const auto sums = strategy.run([] {
    return replica_context().merge_call(
        [](Strategy& s, const PerReplica<double>& ones) {
          return s.extended().reduce_to(ReduceOp::kSum, ones, "CPU:3");
        },
        1.0);
  });
  CHECK(numbers(sums) == std::vector<double>{2, 2});
  CHECK(throws(ErrorCode::kOutOfRange, "replica 2 of a value with 2 components",
               [&] { (void)two[2]; }));
}

TEST_CASE("replicas that come to one update with arguments of other types are told so",
          "[spec][VAR-41]") {
  CentralStorageStrategy central(cpus(2));
  const Variable c = on_write(central, 0.0, kMean);
  const auto assign = [](const Variable& component, const auto& x) { component.assign(x); };

  CHECK(throws(ErrorCode::kFailedPrecondition, "waits in update of variable v", [&] {
    central.run([&] {
      if (id() == 0) {
        central.extended().update(c, assign, own(3));
      } else {
        central.extended().update(c, assign, 3.0);
      }
    });
  }));
  CHECK(number(c) == 0);
}

TEST_CASE("replicas that come with NaN come with the same argument", "[strategy][unit]") {
  CentralStorageStrategy central(cpus(2));
  const Variable c = on_write(central, 0.0, kMean);
  const auto assign = [](const Variable& component, const auto& x) { component.assign(x); };
  const double nan = std::numeric_limits<double>::quiet_NaN();

  central.run([&] { central.extended().update(c, assign, nan); });
  CHECK(std::isnan(number(c)));
  c.assign(0);
  central.run([&] { central.extended().update(c, assign, own(nan)); });
  CHECK(std::isnan(number(c)));
  CHECK(throws(ErrorCode::kInvalidArgument, "other arguments", [&] {
    central.run([&] { central.extended().update(c, assign, own(id() == 0 ? nan : 1)); });
  }));
}

TEST_CASE("replicas come to one update with the rows that all_reduce has given each of them",
          "[strategy][unit]") {
  CentralStorageStrategy central(cpus(2));
  const Variable table = on_write(central, torch::zeros({3, 1}), kMean);
  const auto add = [](const Variable& component, const IndexedSlices& some) {
    component.scatter_add(some, false);
  };
  const auto add_sparse = [](const Variable& component, const torch::Tensor& some) {
    component.assign_add(some.to_dense(), false);
  };
  const auto of_replica = [] {
    return IndexedSlices{.values = torch::full({1, 1}, 1.0F + id()),
                         .indices = ints(id()),
                         .dense_shape = std::vector<std::int64_t>{3, 1}};
  };

  central.run([&] {
    ReplicaContext& here = replica_context();
    const IndexedSlices sum = here.all_reduce(ReduceOp::kSum, of_replica());
    central.extended().update(table, add, sum);
    central.extended().update(table, add_sparse, to_sparse(sum));
  });

  CHECK(list(table.value()) == std::vector<double>{2, 4, 0});
  CHECK(throws(ErrorCode::kInvalidArgument, "other arguments",
               [&] { central.run([&] { central.extended().update(table, add, of_replica()); }); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "other arguments", [&] {
    central.run([&] { central.extended().update(table, add_sparse, to_sparse(of_replica())); });
  }));
}

}  // namespace
}  // namespace muster
