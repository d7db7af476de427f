// ON_WRITE variables: assign, assign_add, assign_sub, and who writes what.
#include "strategy/variables/internal/variable_write.h"

#include <atomic>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/unit/strategy/variables/variable_support.h"

namespace muster {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the vocabulary of these tests

TEST_CASE("a cross-replica write reaches every component, whatever the aggregation",
          "[spec][VAR-01][VAR-11]") {
  for (const int n : {1, 2, 3, 4}) {
    MirroredStrategy strategy(cpus(n));
    for (const auto aggregation : {kNone, kSum, kMean, kFirst}) {
      for (const bool inside : {true, false}) {
        Variable v = on_write(strategy, 0.0, aggregation);
        Variable w = on_write(strategy, 0.0, aggregation);
        Variable x = on_write(strategy, 0.0, aggregation);
        std::optional<Scope> scope;
        if (inside) scope.emplace(strategy.scope());

        CHECK(number(v.assign(1)) == 1);
        CHECK(number(w.assign_add(1)) == 1);
        CHECK(number(x.assign_sub(-1)) == 1);

        CHECK(numbers(v) == times(n, 1));
        CHECK(numbers(w) == times(n, 1));
        CHECK(numbers(x) == times(n, 1));
      }
    }
  }
}

TEST_CASE("a variable is given numbers of any C++ type", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", 5LL);
  CHECK(v.dtype() == torch::kLong);
  CHECK(number(v.assign(std::size_t{7})) == 7);
  CHECK(number(v.assign_add(2ULL)) == 9);
  CHECK(number(v + std::size_t{1}) == 10);
  CHECK(Variable::create("w", 0.5L).dtype() == torch::kFloat);
}

TEST_CASE("a write in replicas reaches every component", "[spec][VAR-02][VAR-04]") {
  for (const int n : {1, 2, 3}) {
    MirroredStrategy strategy(cpus(n));
    for (const auto aggregation : {kNone, kMean, kFirst}) {
      const Variable v = on_write(strategy, 0.0, aggregation);
      CHECK(numbers(strategy.run([&] { return v.assign(1); })) == times(n, 1));
      CHECK(numbers(v) == times(n, 1));
      v.assign(0);
      strategy.run([&] { v.assign_add(1); });
      CHECK(numbers(v) == times(n, 1));
      v.assign(0);
      strategy.run([&] { v.assign_sub(-1); });
      CHECK(numbers(v) == times(n, 1));
    }
    const Variable own_component = on_write(strategy, 0.0, kNone);
    strategy.run([&] {
      if (id() == n - 1) own_component.assign(5);  // alone: nobody has to meet
    });
    std::vector<double> expected = times(n, 0);
    expected.back() = 5;
    CHECK(numbers(own_component) == expected);
    strategy.run([&] { own_component.assign(5); });
    CHECK(numbers(own_component) == times(n, 5));
  }
}

TEST_CASE("one constant cannot be summed over replicas by a write", "[spec][VAR-03]") {
  for (const int n : {2, 3}) {
    MirroredStrategy strategy(cpus(n));
    const Variable v = on_write(strategy, 1.0, kSum);
    const torch::Tensor shared = torch::ones({});

    CHECK(throws(ErrorCode::kInvalidArgument, "cannot be reduced with the given reduce op SUM",
                 [&] { strategy.run([&] { v.assign(5.0); }); }));
    CHECK(throws(ErrorCode::kInvalidArgument, "cannot be reduced with the given reduce op",
                 [&] { strategy.run([&] { v.assign_add(shared); }); }));
    CHECK(numbers(v) == times(n, 1));
    // As of a reduction, 0 of all is 0: a sum is begun anew.
    strategy.run([&] { v.assign_add(0); });
    CHECK(numbers(v) == times(n, 1));
    CHECK(numbers(strategy.run([&] { return v.assign(0); })) == times(n, 0));
    CHECK(numbers(v) == times(n, 0));
    const torch::Tensor zero = torch::zeros({});
    CHECK(throws(ErrorCode::kInvalidArgument, "cannot be reduced with the given reduce op SUM",
                 [&] { strategy.run([&] { v.assign(zero); }); }));
  }
  MirroredStrategy alone(cpus(1));
  const Variable v = on_write(alone, 1.0, kSum);
  alone.run([&] { v.assign(5.0); });
  CHECK(number(v) == 5);
}

TEST_CASE("MEAN writes the mean of the replicas' values", "[spec][VAR-05]") {
  MirroredStrategy strategy(cpus(2));
  const auto mean = [&](double initial) { return on_write(strategy, initial, kMean); };
  const Variable a = mean(0);
  const Variable b = mean(1);
  const Variable c = mean(5);

  CHECK(numbers(strategy.run([&] { return a.assign(id()); })) == times(2, 0.5));
  strategy.run([&] { b.assign_add(id()); });
  strategy.run([&] { c.assign_sub(id()); });

  CHECK(numbers(a) == times(2, 0.5));
  CHECK(numbers(b) == times(2, 1.5));
  CHECK(numbers(c) == times(2, 4.5));
  MirroredStrategy three(cpus(3));
  const Variable d = on_write(three, 10.0, kMean);
  three.run([&] { d.assign_add(own(id() * 3)); });
  CHECK(numbers(d) == times(3, 13));
}

TEST_CASE("MEAN of a constant is the constant", "[spec][VAR-06]") {
  MirroredStrategy strategy(cpus(2));
  const Variable a = on_write(strategy, 1.0, kMean);
  const Variable b = on_write(strategy, 1.0, kMean);
  const Variable c = on_write(strategy, 5.0, kMean);

  strategy.run([&] {
    a.assign(5);
    b.assign_add(5);
    c.assign_sub(1);
  });

  CHECK(numbers(a) == times(2, 5));
  CHECK(numbers(b) == times(2, 6));
  CHECK(numbers(c) == times(2, 4));
}

TEST_CASE("values of the replicas are combined by the aggregation", "[spec][VAR-07]") {
  MirroredStrategy strategy(cpus(2));
  const PerReplica<torch::Tensor> two({own(2), own(2)});
  for (const auto& [aggregation, expected] :
       std::vector<std::pair<VariableAggregation, double>>{{kSum, 4}, {kMean, 2}, {kFirst, 2}}) {
    const Variable v = on_write(strategy, 0.0, aggregation);
    strategy.run([&](const torch::Tensor& value) { v.assign(value); }, two);
    CHECK(numbers(v) == times(2, expected));
  }
}

TEST_CASE("ONLY_FIRST_REPLICA writes replica 0's value", "[spec][VAR-08]") {
  for (const int n : {2, 4}) {
    MirroredStrategy strategy(cpus(n));
    const Variable v = on_write(strategy, 7.0, kFirst);

    const auto returned = strategy.run([&] { return v.assign(id()); });

    CHECK(numbers(returned) == times(n, 0));
    CHECK(numbers(v) == times(n, 0));
  }
}

TEST_CASE("a write that reads nothing back writes all the same", "[spec][VAR-09]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", 1.0);
  const std::vector<std::string> devices = v.devices();

  CHECK(number(v.assign_add(6, /*read_value=*/true)) == 7);
  CHECK(numbers(v) == times(2, 7));
  CHECK_FALSE(v.assign_add(2, /*read_value=*/false).defined());
  CHECK(numbers(v) == times(2, 9));
  CHECK(v.devices() == devices);
  CHECK(devices == std::vector<std::string>{cpu(0), cpu(1)});
  for (int r = 0; r < 2; ++r) CHECK(muster::device_of(v.component(r)) == cpu(r));
}

TEST_CASE("a variable may be assigned another one", "[spec][VAR-10]") {
  MirroredStrategy strategy(cpus(2));
  const Variable two = on_write(strategy, 2.0, kMean);
  const Variable minus_two = on_write(strategy, -2.0, kMean);
  const auto check = [&](VariableAggregation aggregation, bool in_replicas) {
    const Variable a = on_write(strategy, 0.0, aggregation);
    const Variable b = on_write(strategy, 0.0, aggregation);
    const Variable c = on_write(strategy, 0.0, aggregation);
    const auto write = [&] {
      a.assign(two);
      b.assign_add(two);
      c.assign_sub(minus_two);
    };
    if (in_replicas) {
      strategy.run(write);
    } else {
      write();
    }
    for (const Variable& v : {a, b, c}) CHECK(numbers(v) == times(2, 2));
  };
  check(kSum, false);
  for (const auto aggregation : {kNone, kMean, kFirst}) {
    check(aggregation, true);
    check(aggregation, false);
  }
}

TEST_CASE("a replica reads its own component, everybody else the first", "[spec][VAR-12]") {
  MirroredStrategy strategy(cpus(3));
  const Variable v = on_write(strategy, 0.0, kNone);
  strategy.run([&] { v.assign(10 + id()); });

  CHECK(numbers(strategy.run([&] { return v.value(); })) == std::vector<double>{10, 11, 12});
  CHECK(strategy.run([&] { return v.device(); }).values() ==
        std::vector<std::string>{cpu(1), cpu(2), cpu(3)});
  CHECK(number(v) == 10);
  const auto scope = strategy.scope();
  CHECK(number(v) == 10);
  CHECK(v.device() == cpu(1));
}

TEST_CASE("a variable stands in arithmetic", "[spec][VAR-13]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, 1, kSum);
  {
    const auto scope = strategy.scope();
    CHECK(number(v + 1) == 2);
    CHECK((v + 1).scalar_type() == torch::kInt);
  }
  CHECK(numbers(strategy.run([&] { return v + 1; })) == std::vector<double>{2, 2});
  CHECK(number(3 - v) == 2);
  CHECK(number(v * v) == 1);
  CHECK(number(-v) == -1);
  CHECK(list(torch::add(v, torch::ones({2}))) == std::vector<double>{2, 2});
}

TEST_CASE("numbers convert to the variable's type where nothing is lost", "[spec][VAR-34]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, 0.0, kMean);
  CHECK(v.dtype() == torch::kFloat);
  v.assign(1);
  CHECK(numbers(v) == times(2, 1));
  CHECK(v.value().scalar_type() == torch::kFloat);

  const Variable i = on_write(strategy, 1, kMean);
  CHECK(throws(ErrorCode::kInvalidArgument, "cannot be assigned", [&] { i.assign(1.5); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "variable v has shape [] and cannot be assigned",
               [&] { v.assign(torch::ones({2})); }));
  CHECK(numbers(i) == times(2, 1));
}

TEST_CASE("variables of many types and shapes", "[strategy][unit]") {
  for (const int n : {1, 2, 3, 4}) {
    MirroredStrategy strategy(cpus(n));
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kLong, torch::kInt,
                            torch::kBFloat16, torch::kHalf}) {
      for (const auto& shape :
           std::vector<std::vector<std::int64_t>>{{}, {0}, {3}, {2, 0, 2}, {2, 3}}) {
        const Variable v = on_write(strategy, torch::zeros(shape, type), kSum);
        CHECK(v.dtype() == type);
        CHECK(v.sizes() == shape);
        strategy.run([&] { v.assign_add(torch::full(shape, id() + 1, type)); });
        const torch::Tensor expected = torch::full(shape, n * (n + 1) / 2, type);
        for (int r = 0; r < n; ++r) {
          CHECK(v.component(r).value().equal(expected));
          CHECK(muster::device_of(v.component(r)) == cpu(r + 1));
        }
      }
    }
    // 2^53 + 1 has no double, 2^24 + 1 no float.
    const std::int64_t large = (std::int64_t{1} << 53) + 1;
    const Variable i = on_write(strategy, torch::full({}, large, torch::kLong), kMean);
    strategy.run([&] { i.assign(torch::full({}, large, torch::kLong)); });
    CHECK(i.value().item<std::int64_t>() == large);
  }
}

TEST_CASE("components never share storage, with each other or with what was assigned",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"});
  torch::Tensor initial = torch::ones({4});
  const Variable v = on_write(strategy, initial, kFirst);
  torch::Tensor given = torch::full({4}, 2.0f);
  const auto apart = [&](const torch::Tensor& other) {
    std::set<void*> storages{other.data_ptr()};
    for (const Variable& component : v.components()) {
      storages.insert(component.value().data_ptr());
    }
    return storages.size() == 4;
  };

  CHECK(apart(initial));
  v.assign(given);
  CHECK(apart(given));
  given.fill_(9);
  CHECK(list(v) == std::vector<double>{2, 2, 2, 2});
  strategy.run([&] { v.assign(given); });
  CHECK(apart(given));
}

TEST_CASE("the caller's modes do not reach the values", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  Variable v;
  {
    const torch::InferenceMode inference;
    v = on_write(strategy, torch::ones({2}), kMean);
    strategy.run([&] { v.assign_add(torch::ones({2})); });
    CHECK_FALSE(v.value().is_inference());
  }
  const torch::Tensor weight = torch::ones({2}, torch::requires_grad());
  strategy.run([&] { v.assign_add(weight * 2); });
  CHECK(v.value().is_leaf());
  CHECK(v.value().requires_grad());
  CHECK(list(v) == std::vector<double>{4, 4});
}

TEST_CASE("each replica differentiates with respect to its own leaf", "[spec][VAR-39]") {
  for (const int n : {1, 2, 4}) {
    MirroredStrategy mirrored(cpus(n));
    CentralStorageStrategy central(cpus(n));
    for (Strategy* strategy : std::vector<Strategy*>{&mirrored, &central}) {
      const Variable v = on_write(*strategy, torch::ones({8}), kSum);
      const Variable frozen = [&] {
        const auto scope = strategy->scope();
        return Variable::create("frozen", 1.0, {.trainable = false});
      }();

      std::atomic<int> wrong{0};  // Catch2's macros are for one thread
      const auto expect = [&](bool right) { wrong += right ? 0 : 1; };
      const auto gradients = strategy->run([&] {
        expect(v.value().requires_grad());
        expect(!frozen.value().requires_grad());
        const double c = id() + 1;
        for (int step = 0; step < 50; ++step) ((v.value() * c * frozen).sum()).backward();
        return v.value().grad().clone();
      });

      for (int r = 0; r < n; ++r) CHECK(list(gradients[r])[7] == 50 * (r + 1));
      // No guard is needed for a write, and it makes a leaf without a gradient.
      strategy->run([&] {
        v.assign_sub(v.value() * 0.5 * own(1.0 + id()));
        expect(v.value().is_leaf());
        expect(!v.value().grad().defined());
      });
      CHECK(wrong == 0);
      CHECK(list(v)[0] == 1 - 0.5 * n * (n + 1) / 2);
    }
  }
}

TEST_CASE("a concurrent reader sees the old or the new value, never a torn one",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, torch::zeros({4096}), kNone);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  const auto read = [&] {
    while (!stop.load()) {
      const torch::Tensor value = v.value();
      const torch::Tensor before = value.detach().clone();
      if (before.min().item<float>() != before.max().item<float>()) ++torn;
      if (!value.equal(before)) ++torn;
    }
  };
  std::thread reader(read);
  std::thread writer([&] {  // has no context
    for (int i = 1; i <= 200; ++i) v.assign(i);
    stop = true;
  });

  strategy.run(read);
  writer.join();
  reader.join();

  CHECK(torn == 0);
  CHECK(list(v.component(1))[4095] == 200);
}

TEST_CASE("writers do not lose each other's additions, and components stay equal",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, 0, kSum);
  std::vector<std::thread> writers;
  for (int t = 0; t < 3; ++t) {
    writers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) v.assign_add(1);
    });
  }
  for (int i = 0; i < 20; ++i) {
    strategy.run([&] { v.assign_add(torch::full({}, id() + 1, torch::kInt)); });
  }
  for (std::thread& writer : writers) writer.join();

  CHECK(numbers(v) == times(2, 300 + 20 * 3));
}

TEST_CASE("replicas that write different variables are told so", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const Variable a = on_write(strategy, 0.0, kMean);
  const Variable b = on_write(strategy, 0.0, kMean);  // both are called v

  CHECK(throws(ErrorCode::kFailedPrecondition, "different variables that are both called v",
               [&] { strategy.run([&] { (id() == 0 ? a : b).assign(1.0); }); }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "replica 1 waits in assign_sub of variable v",
               [&] { strategy.run([&] { id() == 0 ? a.assign_add(1.0) : a.assign_sub(1.0); }); }));
  strategy.run([&] { a.assign(3.0); });
  CHECK(numbers(a) == times(2, 3));
}

TEST_CASE("a handle of no variable says so", "[strategy][unit]") {
  const Variable none;
  CHECK_FALSE(none.valid());
  CHECK(code_of([&] { (void)none.value(); }) == ErrorCode::kFailedPrecondition);
  CHECK(code_of([&] { none.assign(1); }) == ErrorCode::kFailedPrecondition);
  CHECK(code_of([&] { (void)none.name(); }) == ErrorCode::kFailedPrecondition);
}

TEST_CASE("a mean that fits is written, though the sum does not fit into the type",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, torch::zeros({}, torch::kInt), kMean);
  constexpr int kLarge = 2'000'000'000;
  strategy.run([&] { v.assign(torch::scalar_tensor(kLarge + 2 * id(), torch::kInt)); });
  CHECK(numbers(v) == std::vector<double>(2, kLarge + 1.0));
}

TEST_CASE("a mean of integers that replicas read is refused when the variable is made",
          "[strategy][unit]") {
  MirroredStrategy mirrored(cpus(2));
  OneDeviceStrategy one("CPU:1");
  for (Strategy* const strategy : std::vector<Strategy*>{&mirrored, &one}) {
    const auto scope = strategy->scope();
    const VariableOptions options{.synchronization = kOnRead, .aggregation = kMean};
    VariableOptions typed = options;
    typed.dtype = torch::kLong;
    typed.initialize = false;
    const std::string part = "ON_READ with aggregation MEAN";
    CHECK(throws(ErrorCode::kInvalidArgument, part,
                 [&] { (void)Variable::create("v", 1, options); }));
    CHECK(throws(ErrorCode::kInvalidArgument, part,
                 [&] { (void)Variable::create("v", 1.0, typed); }));
    CHECK(Variable::create("v", 1.0, options).valid());
  }
}

TEST_CASE("the first value that is assigned must convert to the variable's type, too",
          "[strategy][unit]") {
  MirroredStrategy mirrored(cpus(2));
  CentralStorageStrategy central(cpus(2));
  for (Strategy* const strategy : std::vector<Strategy*>{&mirrored, &central}) {
    for (const auto synchronization : {kOnWrite, kOnRead}) {
      const auto scope = strategy->scope();
      const Variable v = Variable::create("v", 0,
                                          {.synchronization = synchronization,
                                           .aggregation = kSum,
                                           .dtype = torch::kLong,
                                           .initialize = false});
      for (const VariableValue& value : {VariableValue(1.5), VariableValue(torch::tensor(1.5F))}) {
        CHECK(throws(ErrorCode::kInvalidArgument, "variable v is Long and cannot be assigned",
                     [&] { v.assign(value); }));
        CHECK_FALSE(v.is_initialized());
      }
      CHECK(throws(ErrorCode::kInvalidArgument, "variable v cannot be assigned a sparse tensor",
                   [&] { v.assign(torch::ones({2}, torch::kLong).to_sparse()); }));
      CHECK_FALSE(v.is_initialized());
      v.assign(torch::tensor(6, torch::kInt));
      CHECK(number(v) == 6);
      CHECK(v.dtype() == torch::kLong);
    }
  }
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// In a process of its own, whose limit this is.
TEST_CASE("a process with few addresses", "[.]") {
  alarm(60);
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages;
  // Room for the threads of libtorch and of replicas, and not for a variable of 4 GiB.
  const std::size_t bytes =
      pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + (std::size_t{5} << 29);
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);

  MirroredStrategy strategy(cpus(2, 30));
  const auto scope = strategy.scope();
  const Variable small = Variable::create("small", torch::ones({1000}));
  const auto sums = strategy.run([&] { return (small + 1).sum().item<double>(); });
  CHECK(sums[0] == 2000);
  CHECK(sums[1] == 2000);
  CHECK(throws(ErrorCode::kResourceExhausted, "variable large: logical device CPU:30", [] {
    (void)Variable::create("large",
                           InitialValue([] { return torch::empty({std::int64_t{1} << 30}); }));
  }));
}

TEST_CASE("where addresses are short a variable that does not fit is RESOURCE_EXHAUSTED",
          "[strategy][unit]") {
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "variable_test", "a process with few addresses", nullptr);
    _exit(127);
  }
  int status = -1;
  REQUIRE(child > 0);
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

TEST_CASE("a variable of another strategy is not read in a replica", "[strategy][unit]") {
  MirroredStrategy first(cpus(2));
  MirroredStrategy second(cpus(2));
  OneDeviceStrategy third("CPU:3");
  const Variable v = on_write(first, 1.0, kMean);
  const Variable plain = Variable::create("plain", 2.0);
  for (Strategy* const other : std::vector<Strategy*>{&second, &third}) {
    CHECK(throws(ErrorCode::kFailedPrecondition, "variable v",
                 [&] { other->run([&] { return v.value(); }); }));
    CHECK(number(other->run([&] { return plain.value(); })[0]) == 2);
  }
  CHECK(number(v) == 1);
}

TEST_CASE("a variable that is assigned what it is read as keeps its value", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const auto begin = [&](VariableAggregation aggregation) {
    const Variable v = on_read(strategy, 0.0, aggregation);
    strategy.run([&] { v.assign(id() == 0 ? 1.0 : 3.0, false); });
    return v;
  };
  // Each component's part is of the value before the write, whichever is written first.
  const Variable sum = begin(kSum);
  sum.assign(sum, false);
  CHECK(number(sum) == 4);
  const Variable mean = begin(kMean);
  mean.assign_add(mean, false);
  CHECK(number(mean) == 4);
  CHECK(numbers(mean) == std::vector<double>{3, 5});
}

TEST_CASE("what is fitted for another process is in memory what its view shows",
          "[strategy][unit]") {
  using internal::WriteKind;
  const torch::Tensor z = torch::complex(floats(1, 2), floats(3, 4));
  const torch::Tensor view = torch::imag(torch::conj(z));

  const auto whole =
      internal::Fitted(WriteKind::kAssign, "v", torch::kFloat, {2}, {.values = view});
  const auto rows_of = internal::Fitted(WriteKind::kScatterAdd, "v", torch::kFloat, {3},
                                        {.values = view, .indices = ints(0, 2)});

  for (const torch::Tensor& fitted : {whole.values, rows_of.values}) {
    const auto* const memory = fitted.data_ptr<float>();
    CHECK(memory[0] == -3);
    CHECK(memory[1] == -4);
  }
}

}  // namespace
}  // namespace muster
