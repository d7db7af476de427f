// ON_READ variables: each replica has its own component, and reads across replicas aggregate.
#include "tests/support/catch.h"
#include "tests/unit/strategy/variables/variable_support.h"

namespace muster {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the vocabulary of these tests

TEST_CASE("a replica writes its own component only", "[spec][VAR-22]") {
  for (const int n : {1, 2, 3}) {
    MirroredStrategy mirrored(cpus(n));
    CentralStorageStrategy central(cpus(n));
    for (Strategy* strategy : std::vector<Strategy*>{&mirrored, &central}) {
      for (const auto aggregation : {kNone, kSum, kMean, kFirst}) {
        const Variable v = on_read(*strategy, 100.0, aggregation);
        std::vector<double> expected;
        for (int r = 0; r < n; ++r) expected.push_back(r + 5 - 1);

        const auto returned = strategy->run([&] {
          if (id() == 0) v.assign_add(0);  // alone: nobody has to meet
          v.assign(id());
          v.assign_add(5);
          return v.assign_sub(1);
        });

        CHECK(numbers(returned) == expected);
        CHECK(numbers(v) == expected);
      }
    }
  }
}

TEST_CASE("a read across replicas aggregates", "[spec][VAR-23]") {
  for (const int n : {1, 2, 3, 4}) {
    MirroredStrategy strategy(cpus(n));
    const auto filled = [&](VariableAggregation aggregation) {
      const Variable v = on_read(strategy, 0.0, aggregation);
      strategy.run([&] { v.assign(id()); });
      return v;
    };
    const Variable none = filled(kNone);

    CHECK(number(filled(kSum)) == n * (n - 1) / 2.0);
    CHECK(number(filled(kMean)) == (n - 1) / 2.0);
    CHECK(number(filled(kFirst)) == 0);
    CHECK(throws(ErrorCode::kInvalidArgument, "Could not convert from VariableAggregation.NONE",
                 [&] { (void)none.value(); }));
    CHECK(numbers(strategy.run([&] { return none.value(); })).back() == n - 1);
  }
}

TEST_CASE("an ON_READ SUM variable spreads what it is assigned", "[spec][VAR-24]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_read(strategy, 0.0, kSum);

  CHECK(number(v.assign(6)) == 6);
  CHECK(numbers(v) == times(2, 3));
  {
    const auto scope = strategy.scope();
    CHECK(number(v.assign(6)) == 6);
    CHECK(number(v) == 6);
  }

  MirroredStrategy three(cpus(3));
  const Variable counts = on_read(three, ints(0), kSum);
  counts.assign(ints(8));  // integers lose nothing
  CHECK(numbers(counts) == std::vector<double>{4, 2, 2});
  CHECK(number(counts) == 8);
}

TEST_CASE("an ON_READ MEAN variable gives everybody what it is assigned", "[spec][VAR-25]") {
  for (const auto aggregation : {kMean, kFirst}) {
    MirroredStrategy strategy(cpus(2));
    const Variable v = on_read(strategy, 0.0, aggregation);
    v.assign(6);
    CHECK(numbers(v) == times(2, 6));
    v.assign_add(2);
    v.assign_sub(1);
    CHECK(numbers(v) == times(2, 7));
    CHECK(number(v) == 7);
  }
}

TEST_CASE("an ON_READ SUM variable cannot be added to across replicas", "[spec][VAR-26]") {
  for (const int n : {1, 2}) {
    MirroredStrategy strategy(cpus(n));
    const Variable v = on_read(strategy, 1.0, kSum);
    CHECK(throws(ErrorCode::kInvalidArgument, "SyncOnReadVariable does not support assign_add",
                 [&] { v.assign_add(1); }));
    CHECK(throws(ErrorCode::kInvalidArgument, "SyncOnReadVariable does not support assign_sub",
                 [&] { v.assign_sub(1); }));
    CHECK(numbers(v) == times(n, 1));
  }
}

TEST_CASE("every replica starts an ON_READ variable at the initial value", "[spec][VAR-27]") {
  MirroredStrategy strategy(cpus(2));
  CHECK(number(on_read(strategy, 1.0, kSum)) == 2.0);
  MirroredStrategy four(cpus(4));
  CHECK(number(on_read(four, 1.5, kSum)) == 6.0);
}

TEST_CASE("ON_READ variables have no scatter operations", "[spec][VAR-28]") {
  MirroredStrategy strategy(cpus(2));
  for (const auto aggregation : {kNone, kSum, kMean, kFirst}) {
    const Variable v = on_read(strategy, floats(0, 0), aggregation);
    for (const auto op : {&Variable::scatter_add, &Variable::scatter_sub, &Variable::scatter_mul,
                          &Variable::scatter_div, &Variable::scatter_min, &Variable::scatter_max,
                          &Variable::scatter_update}) {
      const auto call = [&] { (v.*op)(row(1.0, 0), true); };
      CHECK(code_of(call) == ErrorCode::kUnimplemented);
      CHECK(code_of([&] { strategy.run(call); }) == ErrorCode::kUnimplemented);
    }
  }
}

TEST_CASE("arithmetic takes the aggregated value, or the replica's", "[spec][VAR-29]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_read(strategy, 0.0, kMean);
  strategy.run([&] { v.assign(id()); });

  CHECK(number(v + 1) == 1.5);
  CHECK(numbers(strategy.run([&] { return v + 1; })) == std::vector<double>{1, 2});
}

TEST_CASE("updates of replicas, and what they add up to", "[spec][VAR-30]") {
  MirroredStrategy strategy(cpus(2));
  const Variable sum = on_read(strategy, 1.0, kSum);
  const Variable mean = on_read(strategy, 4.0, kMean);

  strategy.run([&] {
    sum.assign_add(2 + id());
    mean.assign(6 * id());
  });

  CHECK(numbers(sum) == std::vector<double>{3, 4});
  CHECK(numbers(mean) == std::vector<double>{0, 6});
  CHECK(number(sum) == 7);
  CHECK(number(mean) == 3);
}

TEST_CASE("ONLY_FIRST_REPLICA reads the first component, or writes its value", "[spec][VAR-31]") {
  MirroredStrategy strategy(cpus(2));
  const Variable read = on_read(strategy, 2.0, kFirst);
  const Variable write = on_write(strategy, 3.0, kFirst);

  strategy.run([&] {
    read.assign_add(5 * (id() + 1));
    write.assign_add(7 * (id() + 1));
  });

  CHECK(numbers(read) == std::vector<double>{7, 12});
  CHECK(number(read) == 7);
  CHECK(numbers(write) == std::vector<double>{10, 10});
}

TEST_CASE("an update reaches each component of an ON_READ variable", "[spec][VAR-32]") {
  for (const int n : {2, 3}) {
    MirroredStrategy strategy(cpus(n));
    const Variable v = on_read(strategy, 0.0, kSum);
    const auto scope = strategy.scope();

    strategy.extended().update(v, [](const Variable& component) { component.assign(5); });

    CHECK(numbers(v) == times(n, 5));
    CHECK(number(v) == 5 * n);
  }
}

TEST_CASE("a variable may be all-reduced", "[spec][VAR-33]") {
  for (const int n : {1, 2, 3}) {
    MirroredStrategy strategy(cpus(n));
    const Variable v = on_write(strategy, 2.0, kNone);

    const auto sums = strategy.run(
        [&] { return replica_context().all_reduce(reduce_op("SUM"), v.value() + id()); });
    const auto plain =
        strategy.run([&] { return replica_context().all_reduce(reduce_op("SUM"), v) + id(); });

    std::vector<double> expected;
    for (int r = 0; r < n; ++r) expected.push_back(2 * n + r);
    CHECK(numbers(plain) == expected);
    CHECK(numbers(sums) == times(n, 2 * n + n * (n - 1) / 2));
  }
}

TEST_CASE("two sums add up", "[spec][VAR-35]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v1 = on_read(strategy, 0.0, kSum);
  const Variable v2 = on_read(strategy, 0.0, kSum);

  strategy.run([&] {
    v1.assign_add(1);
    v2.assign_add(2);
  });

  CHECK(number(v1 + v2) == 6);
}

TEST_CASE("a variable may wait for its first value", "[spec][VAR-37]") {
  MirroredStrategy strategy(cpus(2));
  for (const auto synchronization : {kOnWrite, kOnRead}) {
    int calls = 0;
    const auto scope = strategy.scope();
    const Variable v = Variable::create(
        "late", [&] { return ++calls, torch::ones({3}); },
        {.synchronization = synchronization, .aggregation = kMean, .initialize = false});

    CHECK_FALSE(v.is_initialized());
    CHECK(calls == 0);
    CHECK(throws(ErrorCode::kFailedPrecondition, "variable late is not initialised",
                 [&] { (void)v.value(); }));
    CHECK(code_of([&] { v.assign_add(1); }) == ErrorCode::kFailedPrecondition);
    v.initialize();
    CHECK(v.is_initialized());
    CHECK(calls == 1);
    CHECK(list(v) == std::vector<double>{1, 1, 1});
    CHECK(v.component(1).is_initialized());
  }
  const auto assigned = [&] {
    const auto scope = strategy.scope();
    return Variable::create("late", 0.0, {.initialize = false});
  }();
  assigned.assign(torch::full({2}, 4.0f));
  CHECK(assigned.is_initialized());
  CHECK(assigned.sizes() == std::vector<std::int64_t>{2});
  int calls = 0;
  const Variable in_replicas = [&] {
    const auto scope = strategy.scope();
    return Variable::create("late", [&] { return ++calls, torch::rand({2}); },
                            {.initialize = false});
  }();
  strategy.run([&] { in_replicas.initialize(); });
  CHECK(calls == 1);
  CHECK(in_replicas.component(0).value().equal(in_replicas.component(1).value()));
}

TEST_CASE("a variable that some replicas alone have given a value has none across replicas",
          "[spec][VAR-37]") {
  MirroredStrategy strategy(cpus(2));
  for (const auto aggregation : {kSum, kMean}) {
    const auto scope = strategy.scope();
    const Variable v = Variable::create(
        "late", 0.0, {.synchronization = kOnRead, .aggregation = aggregation, .initialize = false});
    strategy.run([&] {
      if (id() == 0) v.assign(3.0);
    });

    CHECK_FALSE(v.is_initialized());
    CHECK(throws(ErrorCode::kFailedPrecondition,
                 "variable late is not initialised: replica 1 has given it no value yet",
                 [&] { (void)v.value(); }));
    strategy.run([&] {
      if (id() == 1) v.assign(5.0);
    });
    CHECK(v.is_initialized());
    CHECK(number(v) == (aggregation == kSum ? 8 : 4));
  }
}

TEST_CASE("ON_READ variables of other types", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(3));
  for (const auto type : {torch::kLong, torch::kInt, torch::kBFloat16, torch::kDouble}) {
    const Variable sum = on_read(strategy, torch::zeros({2, 0}, type), kSum);
    strategy.run([&] { sum.assign_add(1); });
    CHECK(sum.value().sizes() == torch::IntArrayRef({2, 0}));
    CHECK(sum.value().scalar_type() == type);
    const Variable many = on_read(strategy, torch::zeros({}, type), kSum);
    strategy.run([&] {
      for (int i = 0; i < 10; ++i) many.assign_add(id() + 1);
    });
    CHECK(number(many) == 60);
  }
}

}  // namespace
}  // namespace muster
