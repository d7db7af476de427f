// Where and how variables are made: scopes, creators, devices, names, modes.
#include <stdexcept>
#include <thread>

#include "strategy/core/default_strategy.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/variables/variable_support.h"

namespace muster {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the vocabulary of these tests

using Next = std::function<Variable(VariableSpec)>;
using Names = std::vector<std::string>;

TEST_CASE("the default strategy's scope changes nothing, and forbids variables of others",
          "[spec][LIB-09]") {
  MirroredStrategy strategy(cpus(2));
  {
    const auto scope = default_strategy().scope();
    CHECK_FALSE(has_strategy());
    CHECK(get_replica_context() == &default_replica_context());
    CHECK_FALSE(in_cross_replica_context());
    CHECK(number(Variable::create("v", 1.0)) == 1);

    const auto inner = strategy.scope();
    CHECK(&get_strategy() == &strategy);
    CHECK(throws(ErrorCode::kFailedPrecondition, "Mixing different Strategy objects",
                 [] { Variable::create("v", 1.0); }));
  }
  const auto scope = strategy.scope();
  CHECK(Variable::create("v", 1.0).size() == 2);
}

TEST_CASE("a scope cannot close while a variable creator scope inside it is open",
          "[spec][LIB-13]") {
  OneDeviceStrategy strategy("CPU:1");
  auto scope = strategy.scope();
  auto inner = std::make_unique<VariableCreatorScope>(
      [](const Next& next, VariableSpec spec) { return next(std::move(spec)); });

  CHECK(throws(ErrorCode::kFailedPrecondition, "Variable creator scope nesting error",
               [&] { scope.close(); }));
  CHECK(&get_strategy() == &strategy);
  inner.reset();
  scope.close();
  CHECK_FALSE(has_strategy());
}

TEST_CASE("creators see what was asked for", "[spec][LIB-16]") {
  MirroredStrategy strategy(cpus(2));
  const auto scope = strategy.scope();
  std::vector<VariableOptions> seen;
  const auto creator =
      strategy.extended().variable_creator_scope([&](const Next& next, VariableSpec spec) {
        seen.push_back(spec.options);
        return next(std::move(spec));
      });

  Variable::create("v", 1.0);
  Variable::create("v", 1.0, {.synchronization = kOnWrite, .aggregation = kMean});

  CHECK(seen[0].synchronization == VariableSynchronization::kAuto);
  CHECK(seen[0].aggregation == kNone);
  CHECK(seen[1].synchronization == kOnWrite);
  CHECK(seen[1].aggregation == kMean);
}

TEST_CASE("creators nest, may change the variable, or make another", "[strategy][unit]") {
  OneDeviceStrategy strategy("CPU:1");
  const auto scope = strategy.scope();
  const VariableCreatorScope outer([](const Next& next, VariableSpec spec) {
    spec.name += "/outer";
    return next(std::move(spec));
  });
  const VariableCreatorScope inner([](const Next& next, VariableSpec spec) {
    spec.name += "/inner";
    spec.initial_value = 7.0;
    return next(std::move(spec));
  });
  const Variable v = Variable::create("v", 1.0);
  CHECK(v.name() == "v/inner/outer");
  CHECK(number(v) == 7);
  const VariableCreatorScope other([&](const Next&, VariableSpec) { return v; });
  CHECK(Variable::create("w", 2.0).is_same(v));
}

TEST_CASE("cross-replica calls of every kind are refused inside a replica function",
          "[spec][LIB-20]") {
  MirroredStrategy strategy(cpus(2));
  const PerReplica<torch::Tensor> value({torch::ones({2}), torch::ones({2})});
  const Variable v = on_write(strategy, torch::zeros({2}), kNone);
  using Pairs = std::vector<std::pair<PerReplica<torch::Tensor>, Destinations>>;
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"use merge_call", [&] { strategy.reduce(ReduceOp::kSum, value); }},
      {"use all_gather", [&] { strategy.gather(value, 0); }},
      {"use merge_call", [&] { strategy.extended().reduce_to(ReduceOp::kSum, value, v); }},
      {"use merge_call",
       [&] { strategy.extended().batch_reduce_to(ReduceOp::kSum, Pairs{{value, v}}); }},
      {"use merge_call", [&] { strategy.run([] {}); }},
      {"use merge_call", [&] { const auto scope = strategy.scope(); }},
  };
  OneDeviceStrategy other("CPU:1");
  for (const auto& [text, call] : calls) {
    CHECK(throws(ErrorCode::kFailedPrecondition, "requires cross-replica context, " + text,
                 [&] { strategy.run(call); }));
    CHECK_NOTHROW(call());
    const auto scope = other.scope();
    CHECK(throws(ErrorCode::kFailedPrecondition, "Mixing different Strategy objects", call));
  }
}

TEST_CASE("colocation needs the scope of its strategy, and its variable",
          "[spec][LIB-23][VAR-42]") {
  MirroredStrategy strategy(cpus(2));
  OneDeviceStrategy other("CPU:3");
  const Variable v = on_write(strategy, 1.0, kNone);
  const Variable foreign = on_write(other, 1.0, kNone);

  CHECK(throws(ErrorCode::kFailedPrecondition, "Need to be inside scope",
               [&] { const auto colocate = strategy.extended().colocate_vars_with(v); }));
  {
    const auto scope = strategy.scope();
    CHECK(throws(ErrorCode::kInvalidArgument, "under another strategy",
                 [&] { const auto colocate = strategy.extended().colocate_vars_with(foreign); }));
    const auto colocate = strategy.extended().colocate_vars_with(v);
    const Variable w = Variable::create("w", 2.0);
    CHECK(w.devices() == v.devices());
    CHECK(w.devices() == Names{cpu(1), cpu(2)});
  }
  CentralStorageStrategy central(cpus(3), "CPU:4");
  const auto scope = central.scope();
  const Variable one = Variable::create("one", 1.0);
  const Variable each = Variable::create("each", 1.0, {.synchronization = kOnRead});
  {
    const auto colocate = central.extended().colocate_vars_with(each);
    CHECK(Variable::create("w", 2.0).devices() == Names{cpu(1)});
  }
  const auto colocate = central.extended().colocate_vars_with(one);
  CHECK(muster::device_of(Variable::create("w", torch::ones({3}))) == cpu(4));
}

TEST_CASE("components are named after the variable and lie on the devices", "[spec][MIR-04]") {
  for (const int n : {2, 3}) {
    MirroredStrategy strategy(cpus(n));
    const auto made = strategy.run([] { return Variable::create("foo", torch::ones({3})); });
    const auto scope = strategy.scope();
    const Variable direct = Variable::create("foo", torch::ones({3}));
    for (const Variable& v : {made[0], direct}) {
      CHECK(v.kind() == Variable::Kind::kMirrored);
      CHECK(v.size() == n);
      CHECK(v.name() == "foo");
      CHECK(&v.strategy() == &strategy);
      for (int r = 0; r < n; ++r) {
        const Variable component = v.component(r);
        CHECK(component.name() == (r == 0 ? "foo" : "foo/replica_" + std::to_string(r)));
        CHECK(component.device() == cpu(r + 1));
        CHECK(muster::device_of(component) == cpu(r + 1));
        CHECK(&component.strategy() == &strategy);
      }
    }
    CHECK(made[0].is_same(made[n - 1]));
    CHECK(code_of([&] { (void)direct.component(n); }) == ErrorCode::kOutOfRange);
  }
}

TEST_CASE("names are kept", "[spec][MIR-05]") {
  MirroredStrategy strategy(cpus(2));
  CHECK(strategy.run([] { return Variable::create(1.0); })[0].name() == "Variable");
  const Names names{"foo0",    "foo1",      "foo2",        "foo3",     "foo4",
                    "foo/bar", "foo_1/bar", "foo_1/bar_1", "foo/bar_1"};
  const auto made = strategy.run([&] {
    std::vector<Variable> variables;
    for (const std::string& name : names) variables.push_back(Variable::create(name, 1.0));
    return variables;
  });
  for (std::size_t i = 0; i < names.size(); ++i) {
    CHECK(made[0][i].name() == names[i]);
    CHECK(made[1][i].component(1).name() == names[i] + "/replica_1");
  }
}

TEST_CASE("replica 0's name wins", "[spec][MIR-06]") {
  MirroredStrategy strategy(cpus(3));
  const auto made = strategy.run(
      [] { return Variable::create("foo_" + std::to_string(id()), static_cast<double>(id())); });
  CHECK(made[2].name() == "foo_0");
  CHECK(numbers(made[2]) == times(3, 0));
}

TEST_CASE("replicas that create different variables are told so", "[spec][MIR-07]") {
  MirroredStrategy strategy(cpus(2));
  const PerReplica<std::string> names({"foo", "bar"});
  CHECK(throws(
      ErrorCode::kFailedPrecondition, "replica 0 creates \"foo\" and replica 1 \"bar\"",
      [&] { strategy.run([](const std::string& name) { Variable::create(name, 1.0); }, names); }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "replica 1 waits in creation of a variable", [&] {
    strategy.run([] {
      if (id() == 1) Variable::create("foo", 1.0);
    });
  }));
  CHECK(strategy.run([] { return Variable::create("v", 1.0); })[0].size() == 2);
}

TEST_CASE("replicas that create one name with other options or shapes are told both",
          "[spec][MIR-07]") {
  MirroredStrategy strategy(cpus(3));
  struct Case {
    InitialValue first, other;
    VariableOptions options, others;
    std::string one, two;
  };
  const std::vector<Case> cases{
      {torch::ones({2}), torch::ones({3}), {}, {}, "of shape [2]", "of shape [3]"},
      {1.0, torch::ones({3}), {}, {}, "of shape []", "of shape [3]"},
      {torch::ones({2}), torch::ones({2}, torch::kDouble), {}, {}, "as Float", "as Double"},
      {1.0, 1.0, {.dtype = torch::kLong}, {.dtype = torch::kInt}, "as Long", "as Int"},
      {1.0, 1.0, {.synchronization = kOnRead}, {}, "ON_READ", "ON_WRITE"},
      {1.0, 1.0, {.aggregation = kSum}, {.aggregation = kMean}, "SUM", "MEAN"},
      {1.0, 1.0, {.trainable = false}, {}, "not trainable", "trainable"},
      {1.0, 1.0, {}, {.initialize = false}, "with a value", "without a value"}};
  for (const Case& one : cases) {
    CAPTURE(one.one, one.two);
    const auto create = [&] {
      const bool same = id() < 2;
      (void)Variable::create(same ? "foo_1" : "foo_2", same ? one.first : one.other,
                             same ? one.options : one.others);
    };
    const auto error = error_of([&] { strategy.run(create); });
    REQUIRE(error);
    const std::string text = error->message();
    CAPTURE(text);
    CHECK(error->code() == ErrorCode::kFailedPrecondition);
    const std::size_t first = text.find("replica 0 creates \"foo_1\" ");
    const std::size_t second = text.find("and replica 2 \"foo_2\" ");
    REQUIRE(first < second);
    REQUIRE(second != std::string::npos);
    CHECK(text.substr(first, second - first).find(one.one) != std::string::npos);
    CHECK(text.substr(second).find(one.two) != std::string::npos);
  }
  // What says the same in other words is the same; functions are not asked.
  const auto made = strategy.run([] {
    const VariableOptions plain;
    const VariableOptions said{.trainable = true, .synchronization = kOnWrite};
    const auto none = []() -> torch::Tensor { throw std::runtime_error("asked"); };
    return id() == 0 ? Variable::create("v", torch::ones({2}), plain)
                     : Variable::create("v", none, said);
  });
  CHECK(made[2].sizes() == std::vector<std::int64_t>{2});
}

TEST_CASE("a random initial value is replica 0's everywhere", "[spec][MIR-08]") {
  for (const int n : {2, 4}) {
    MirroredStrategy strategy(cpus(n));
    const auto made = strategy.run([] {
      return std::pair(Variable::create("lazy", [] { return torch::rand({16}); }),
                       Variable::create("eager", torch::rand({16}) + id()));
    });
    const auto& [lazy, eager] = made[0];
    for (int r = 1; r < n; ++r) {
      CHECK(lazy.component(r).value().equal(lazy.component(0).value()));
      CHECK(eager.component(r).value().equal(eager.component(0).value()));
    }
    CHECK(eager.value().max().item<float>() < 1);  // without + id()
  }
}

TEST_CASE("synchronization NONE is refused under a strategy", "[spec][MIR-09]") {
  MirroredStrategy mirrored(cpus(2));
  OneDeviceStrategy one("CPU:1");
  const auto create = [] {
    Variable::create("v", 1.0, {.synchronization = VariableSynchronization::kNone});
  };
  for (Strategy* strategy : std::vector<Strategy*>{&mirrored, &one}) {
    const auto scope = strategy->scope();
    CHECK(throws(
        ErrorCode::kInvalidArgument,
        "NONE variable synchronization mode is not supported with " + std::string(strategy->name()),
        create));
  }
  CHECK(code_of([&] { mirrored.run(create); }) == ErrorCode::kInvalidArgument);
  CHECK_NOTHROW(create());
}

TEST_CASE("an initial value that is no dense tensor is refused by the variable's name",
          "[strategy][unit][spec][PRT-10]") {
  MirroredStrategy strategy(cpus(2));
  const auto scope = strategy.scope();
  CHECK(throws(ErrorCode::kInvalidArgument, "the initial value of variable v is sparse",
               [] { Variable::create("v", torch::eye(2).to_sparse()); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "the initial value of variable v is undefined",
               [] { Variable::create("v", torch::Tensor()); }));
}

TEST_CASE("modes that do not exist are refused by name", "[spec][MIR-10]") {
  MirroredStrategy strategy(cpus(2));
  const auto scope = strategy.scope();
  CHECK(throws(ErrorCode::kInvalidArgument,
               "Invalid variable synchronization mode: 77 for "
               "variable: v",
               [] {
                 Variable::create("v", 1.0,
                                  {.synchronization = static_cast<VariableSynchronization>(77)});
               }));
  CHECK(throws(
      ErrorCode::kInvalidArgument, "Invalid variable aggregation mode: 78 for variable: v",
      [] { Variable::create("v", 1.0, {.aggregation = static_cast<VariableAggregation>(78)}); }));
}

TEST_CASE("ON_WRITE is trainable by default, ON_READ is not", "[spec][MIR-11]") {
  MirroredStrategy strategy(cpus(2));
  const auto scope = strategy.scope();
  const auto trainable = [](VariableSynchronization synchronization, std::optional<bool> asked) {
    return Variable::create("v", 1.0, {.trainable = asked, .synchronization = synchronization})
        .trainable();
  };
  CHECK(trainable(kOnWrite, std::nullopt));
  CHECK_FALSE(trainable(kOnRead, std::nullopt));
  CHECK_FALSE(trainable(kOnWrite, false));
  CHECK(trainable(kOnRead, true));
}

TEST_CASE("only the first replica counts the steps", "[spec][MIR-24]") {
  MirroredStrategy strategy(cpus(3));
  const Variable step = on_write(strategy, std::int64_t{0}, kFirst);
  strategy.run([&] { step.assign_add(1); });
  CHECK(number(step) == 1);
  for (const Variable& local : strategy.local_results(step)) CHECK(number(local) == 1);
  CHECK(strategy.local_results(step).size() == 3);
}

TEST_CASE("creators of a replica function are its own thread's", "[spec][MIR-26]") {
  MirroredStrategy strategy(cpus(2));
  const auto scope = strategy.scope();
  const Variable main_thread = Variable::create("main_thread", 0.0);
  std::vector<Names> seen(2);
  const VariableCreatorScope outer([&](const Next&, VariableSpec spec) {
    seen[static_cast<std::size_t>(id())].push_back("main_thread:" + spec.name);
    return main_thread;  // and does not ask the strategy
  });
  const auto result = strategy.run([&] {
    const VariableCreatorScope inner([&](const Next& next, VariableSpec spec) {
      spec.name += ":thread_" + std::to_string(id());
      return next(std::move(spec));
    });
    const Variable v = Variable::create("v", 1.0);
    replica_context().merge_call([](Strategy&, const PerReplica<int>&) {}, 1);
    return v;
  });
  CHECK(result[0].is_same(main_thread));
  CHECK(seen == std::vector<Names>{{"main_thread:v:thread_0"}, {"main_thread:v:thread_1"}});
}

TEST_CASE("a merge call's variables do not meet the creators of the replica that runs it",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const auto made = strategy.run([&] {
    const VariableCreatorScope mine([](const Next& next, VariableSpec spec) {
      spec.name += "/mine";
      return next(std::move(spec));
    });
    return replica_context().merge_call(
        [](Strategy&, const PerReplica<int>&) { return Variable::create("v", 1.0); }, 1);
  });
  CHECK(made[0].name() == "v");
}

TEST_CASE("three devices: variables and merge calls", "[spec][MIR-28]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:5"});
  const auto made = strategy.run([] {
    const Variable v = Variable::create("v", torch::ones({2}), {.aggregation = kSum});
    replica_context().merge_call([](Strategy&, const PerReplica<int>&) {}, 1);
    v.assign_add(torch::ones({2}));
    return v;
  });
  CHECK(made[0].devices() == Names{cpu(0), cpu(1), cpu(5)});
  for (const Variable& component : made[0].components()) {
    CHECK(list(component) == std::vector<double>{4, 4});
  }
}

TEST_CASE("one device: variables and computation are there", "[spec][ONE-02]") {
  OneDeviceStrategy strategy("CPU:3");
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", torch::ones({4}));
  CHECK(v.kind() == Variable::Kind::kPlain);
  CHECK(v.devices() == Names{cpu(3)});
  CHECK(muster::device_of(v) == cpu(3));
  const auto doubled = strategy.run([&] { return v.assign_add(v * 2); });
  CHECK(muster::device_of(doubled[0]) == cpu(3));
  CHECK(muster::device_of(strategy.run([&] { return v + v; })[0]) == cpu(3));
  CHECK(list(v) == std::vector<double>{3, 3, 3, 3});
}

TEST_CASE("under a device scope and no strategy a variable lies on that device",
          "[strategy][unit]") {
  const DeviceScope device("CPU:2");
  const Variable v = Variable::create("v", torch::ones({4}));
  CHECK(v.devices() == Names{cpu(2)});
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto scope = strategy.scope();
  CHECK(Variable::create("v", torch::ones({4})).devices() == Names{cpu(0), cpu(1)});
}

TEST_CASE("a plain variable may be used by replicas", "[strategy][unit]") {
  const Variable v = Variable::create("v", torch::ones({4}));
  MirroredStrategy strategy(cpus(2));
  const auto gradients = strategy.run([&] {
    (v * (id() + 1)).sum().backward();
    return v.value().grad().clone();
  });
  CHECK(list(gradients[0])[0] == 1);
  CHECK(list(gradients[1])[0] == 2);
  strategy.run([&] { v.assign_add(1); });
  CHECK(list(v)[0] == 3);
}

TEST_CASE("training makes the error smaller, and the same on every strategy", "[spec][ONE-08]") {
  OneDeviceStrategy one("CPU:1");
  MirroredStrategy mirrored(cpus(2));
  CentralStorageStrategy central(cpus(2));
  for (Strategy* strategy :
       std::vector<Strategy*>{&one, &mirrored, &central, &default_strategy()}) {
    const auto scope = strategy->scope();
    const Variable w = Variable::create("w", 0.0, {.aggregation = kMean});
    std::vector<double> errors;
    for (int step = 0; step < 10; ++step) {
      const auto losses = strategy->run([&] {
        const torch::Tensor error = w.value() * 1.0 - 1.0;
        const torch::Tensor loss = error * error;
        loss.backward();
        w.assign_sub(w.value().grad() * 0.2);
        return loss.detach();
      });
      errors.push_back(number(losses[0]));
    }
    CHECK(errors.back() < errors.front());
    CHECK(errors[1] == Approx(0.36).margin(1e-6));
    for (const Variable& component : w.components()) CHECK(number(component) == number(w));
  }
}

TEST_CASE("central storage: where variables live", "[spec][CEN-01][CEN-02]") {
  CHECK(CentralStorageStrategy().parameter_devices() == Names{cpu(0)});
  CHECK(CentralStorageStrategy({"CPU:3"}).parameter_devices() == Names{cpu(3)});
  CHECK(CentralStorageStrategy({"CPU:3"}).worker_devices() == Names{cpu(3)});

  CentralStorageStrategy strategy(cpus(2));
  CHECK(strategy.parameter_devices() == Names{cpu(0)});
  CHECK(strategy.worker_devices() == Names{cpu(1), cpu(2)});
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", torch::ones({4}));
  CHECK(v.devices() == Names{cpu(0)});
  CHECK(muster::device_of(v) == cpu(0));
  const auto computed = strategy.run([&] { return v + 1; });
  CHECK(muster::device_of(computed[0]) == cpu(1));
  CHECK(muster::device_of(computed[1]) == cpu(2));
}

TEST_CASE("central storage: one component for all replicas", "[spec][CEN-03]") {
  CentralStorageStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, 1, kNone);
  CHECK(v.kind() == Variable::Kind::kAggregating);
  CHECK(v.size() == 1);
  v.assign(3);
  CHECK(number(v) == 3);
  CHECK(numbers(strategy.run([&] { return v.value(); })) == times(2, 3));
  CentralStorageStrategy alone(cpus(1));
  CHECK(on_write(alone, 1, kNone).kind() == Variable::Kind::kMirrored);
}

TEST_CASE("central storage: one update of the aggregate", "[spec][CEN-04]") {
  CentralStorageStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, 1, kMean);
  const auto returned = strategy.run([&] { return v.assign_add(2); });
  CHECK(number(v) == 3);
  CHECK(numbers(returned) == times(2, 3));
  CHECK(strategy.local_results(v).size() == 1);
  CHECK(number(strategy.local_results(v)[0]) == 3);
}

TEST_CASE("central storage: a write of replicas needs an aggregation", "[spec][CEN-05]") {
  CentralStorageStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, 1.0, kNone);
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { v.assign(2); }, [&] { v.assign_add(2); }, [&] { v.assign_sub(2); }}) {
    CHECK(throws(ErrorCode::kInvalidArgument, "create it with an aggregation",
                 [&] { strategy.run(call); }));
  }
  CHECK(number(v) == 1);
}

TEST_CASE("central storage: reduce, gather and local results", "[spec][CEN-07]") {
  CentralStorageStrategy strategy(cpus(3));
  const auto values = strategy.run([] { return torch::full({1}, id() + 1.0); });
  CHECK(list(strategy.reduce(ReduceOp::kSum, values)) == std::vector<double>{6});
  CHECK(list(strategy.reduce("MEAN", values, 0)) == std::vector<double>{2});
  CHECK(list(strategy.gather(values, 0)) == std::vector<double>{1, 2, 3});
  CHECK(strategy.local_results(values).size() == 3);
}

}  // namespace
}  // namespace muster
