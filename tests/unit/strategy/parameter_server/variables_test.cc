// Variables on parameter servers, as their driver has them.
#include <thread>

#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/parameter_server/servers.h"

namespace muster {
namespace {

using testing::device_of_server;
using testing::says;
using testing::Servers;

TEST_CASE("variables go round the servers in the order in which they are made",
          "[strategy][unit][PSS-01][PSS-02][PSS-04]") {
  const Servers servers(3);
  ParameterServerStrategy strategy;
  const Variable outside = Variable::create("outside", 1.0);
  const DeviceScope ignored_around("CPU:1");
  const auto scope = strategy.scope();
  std::vector<Variable> variables;
  for (int i = 0; i < 3; ++i) variables.push_back(Variable::create("v" + std::to_string(i), 1.0));
  Variable beside;
  {
    const auto colocated = strategy.extended().colocate_vars_with(variables[1]);
    beside = Variable::create("beside", torch::zeros({4, 2}));
  }
  {
    const DeviceScope ignored("CPU:0");
    variables.push_back(Variable::create("v3", 1.0));
  }
  CHECK(outside.device() == "/job:localhost/replica:0/task:0/device:CPU:0");
  CHECK(beside.device() == device_of_server(1));
  CHECK(variables[0].device() == device_of_server(0));
  CHECK(variables[1].device() == device_of_server(1));
  CHECK(variables[2].device() == device_of_server(2));
  CHECK(variables[3].device() == device_of_server(0));
}

TEST_CASE("the driver reads and writes at once, whatever the type", "[strategy][unit]") {
  const Servers servers;
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  const Variable w = Variable::create("w", torch::ones({2, 3}));
  CHECK(w.sizes() == std::vector<std::int64_t>{2, 3});
  CHECK(w.is_initialized());
  CHECK(w.assign_add(torch::full({2, 3}, 2.0)).equal(torch::full({2, 3}, 3.0F)));
  CHECK(w.assign_sub(1).equal(torch::full({2, 3}, 2.0F)));
  CHECK(w.assign(5).equal(torch::full({2, 3}, 5.0F)));
  CHECK(w.value().requires_grad());
  CHECK(says("variable w has shape", [&] { (void)(w.assign(torch::zeros({3, 2}))); }));

  const Variable n = Variable::create("n", std::int64_t{1} << 40);
  CHECK(n.dtype() == torch::kLong);
  n += 1;
  CHECK(n.item<std::int64_t>() == (std::int64_t{1} << 40) + 1);
  CHECK(says("cannot be assigned", [&] { (void)(n.assign_add(0.5)); }));
  const Variable flags = Variable::create("flags", torch::tensor({true, false}));
  CHECK(flags.assign(torch::tensor({false, true})).equal(torch::tensor({false, true})));
  const Variable half = Variable::create("half", torch::ones({2}, torch::kHalf));
  CHECK(half.value().scalar_type() == torch::kHalf);

  const Variable later = Variable::create("later", 2.0, {.initialize = false});
  CHECK_FALSE(later.is_initialized());
  CHECK_THROWS_AS(later.value(), Error);
  later.initialize();
  CHECK(later.item<float>() == 2);
}

TEST_CASE("a caching scope reads each variable once", "[strategy][unit][VAR-38]") {
  const Servers servers;
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", 1.0);
  const Variable other = Variable::create("other", 1.0);
  {
    const CachingScope cached;
    CHECK(v.item<float>() == 1);
    v.assign(5);
    CHECK(v.item<float>() == 1);
    CHECK(v.value().item<float>() == 1);
    other.assign(3);
    CHECK(other.item<float>() == 3);  // read first just now
    const auto nested = testing::error_of([] { const CachingScope again; });
    REQUIRE(nested);
    CHECK(nested->code() == ErrorCode::kInvalidArgument);
    CHECK(v.item<float>() == 1);  // the outer one holds still
    // Another thread is in no scope.
    float elsewhere = 0;
    std::thread([&] { elsewhere = v.item<float>(); }).join();
    CHECK(elsewhere == 5);
  }
  CHECK(v.item<float>() == 5);
  v.assign(6);
  const CachingScope cached;
  CHECK(v.item<float>() == 6);
}

TEST_CASE("a checkpoint that is saved in a caching scope holds what is on the servers",
          "[strategy][unit][VAR-38][CKP-09]") {
  const testing::TempFolder folder;
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", torch::ones({4}));
  {
    const CachingScope cached;
    CHECK(v.value().equal(torch::ones({4})));
    v.assign(5);
    Checkpoint({{"v", v}}).save(folder / "saved");
    CHECK(v.value().equal(torch::ones({4})));
  }
  v.assign(0);
  Checkpoint({{"v", v}}).restore(folder / "saved");
  CHECK(v.value().equal(torch::full({4}, 5.0F)));
}

TEST_CASE("by bytes variables go where the fewest are", "[strategy][unit]") {
  const Servers servers(3);
  ParameterServerStrategy strategy({.placement = Placement::kByBytes});
  const auto scope = strategy.scope();
  const Variable large = Variable::create("large", torch::zeros({100, 2}));
  const Variable middle = Variable::create("middle", torch::zeros({30}));
  Variable small = Variable::create("small", torch::zeros({10}));
  CHECK(large.device() == device_of_server(0));
  CHECK(middle.device() == device_of_server(1));
  CHECK(small.device() == device_of_server(2));
  const Variable next = Variable::create("next", torch::zeros({5}));
  CHECK(next.device() == device_of_server(2));
  Variable beside;
  {
    const auto colocated = strategy.extended().colocate_vars_with(small);
    beside = Variable::create("beside", torch::zeros({20}));  // counts, too: 35 there, 30 on 1
  }
  CHECK(beside.device() == device_of_server(2));
  CHECK(Variable::create("fits", torch::zeros({1})).device() == device_of_server(1));
  // What is dropped counts no more.
  beside = Variable();
  CHECK(Variable::create("after", torch::zeros({1})).device() == device_of_server(2));
}

TEST_CASE("a variable without elements is refused, however it would be cut", "[strategy][unit]") {
  const Servers servers;
  const VariablePartitioner in_two = [](const std::vector<std::int64_t>&, torch::ScalarType) {
    return std::vector<std::int64_t>{2, 1};
  };
  for (const VariablePartitioner& partitioner : {VariablePartitioner(), in_two}) {
    ParameterServerStrategy strategy(partitioner);
    const auto scope = strategy.scope();
    CHECK(testing::throws(ErrorCode::kInvalidArgument, "variable t: dimension 0 is 0",
                          [] { (void)Variable::create("t", torch::zeros({0, 4})); }));
    CHECK(testing::throws(ErrorCode::kInvalidArgument, "variable t: dimension 1 is 0",
                          [] { (void)Variable::create("t", torch::zeros({4, 0})); }));
    // The name is free.
    CHECK(Variable::create("t", torch::ones({4, 1})).value().sum().item<float>() == 4);
  }
  ParameterServerStrategy strategy;
  CHECK(testing::throws(ErrorCode::kInvalidArgument, "dimension 0 is 0",
                        [&] { (void)strategy.distribute(torch::nn::Linear(3, 0)); }));
}

TEST_CASE("names are unique among the variables that a program has", "[strategy][unit]") {
  const Servers servers;
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  {
    const Variable w = Variable::create("w", 1.0);
    CHECK(says("another one has the name", [&] { (void)(Variable::create("w", 2.0)); }));
    CHECK(w.item<float>() == 1);
  }
  // The first is gone, and its memory free.
  CHECK(Variable::create("w", 3.0).item<float>() == 3);
}

TEST_CASE("who finds variables by name finds the one that has taken a dropped one's",
          "[strategy][unit]") {
  const Servers servers;
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  Variable w = Variable::create("w", 1.0);
  const VariableId first = servers.connection->Find("w")->id;
  w = Variable();
  w = Variable::create("w", torch::ones({2}));
  CHECK(servers.connection->Find("w")->id != first);
}

TEST_CASE("a server that did not answer once keeps no memory and no name of dropped variables",
          "[strategy][unit]") {
  Servers servers;
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  Variable here = Variable::create("here", torch::zeros({1'000}));
  Variable away = Variable::create("away", torch::zeros({1'000}));
  REQUIRE(away.device() == device_of_server(1));
  CHECK_THROWS_AS(
      servers.connection->Raise(Unavailable("ps:1: no answer for 4 s"), ClosurePhase::kRun),
      PsUnavailable);

  here = Variable();
  away = Variable();

  CHECK(Variable::create("here", 1.0).item<float>() == 1);
  CHECK(Variable::create("away", 2.0).item<float>() == 2);
}

TEST_CASE("a server without room is told of as the server's trouble", "[strategy][unit]") {
  const Servers servers;
  try {
    servers.connection->Raise(ResourceExhausted("ps:1: no room for 7 bytes"),
                              ClosurePhase::kWrites);
  } catch (const ClosureError& error) {
    CHECK(error.code() == ErrorCode::kResourceExhausted);
    CHECK(error.details().origin == ErrorOrigin::kParameterServer);
    CHECK(error.details().task == "ps:1");
    return;
  }
}

TEST_CASE("a driver without servers has no such strategy", "[strategy][unit][PSS-05]") {
  CHECK(testing::throws(ErrorCode::kInvalidArgument, "at least one ps", [&] {
    (void)internal::PsConnection::OpenAsDriver({.job_id = "job-1"}, local_cluster(1));
  }));
}

TEST_CASE("a module whose parameters share memory without being one tensor is refused",
          "[strategy][unit]") {
  const Servers servers;
  ParameterServerStrategy strategy;
  torch::nn::Linear module(2, 2);
  module->register_parameter("other", module->weight.detach());
  CHECK(testing::throws(ErrorCode::kUnimplemented, "parameters weight and other of module",
                        [&] { (void)strategy.distribute(module); }));
  torch::nn::Linear turned(2, 2);
  turned->register_parameter("other", turned->weight.detach().t());
  CHECK(testing::throws(ErrorCode::kInvalidArgument, "parameter weight and parameter other of",
                        [&] { (void)strategy.distribute(turned); }));
}

TEST_CASE("scatters go to rows, wherever they lie", "[strategy][unit][SHV-11][SHV-12]") {
  const Servers servers(3);
  ParameterServerStrategy strategy(fixed_shards_partitioner(3));
  const torch::Tensor first = torch::arange(96.0).reshape({32, 3});
  const torch::Tensor ids = torch::tensor({0, 10, 11, 12, 30, 31, 10}, torch::kLong);
  const torch::Tensor rows = torch::full({7, 3}, 2.0F) + torch::arange(7.0).reshape({7, 1});
  const Variable local = Variable::create("local", first);
  const auto scope = strategy.scope();
  const Variable remote = Variable::create("remote", first);
  REQUIRE(ShardedVariable(remote).size() == 3);
  using Scatter = torch::Tensor (Variable::*)(const IndexedSlices&, bool) const;
  for (const Scatter scatter :
       {&Variable::scatter_add, &Variable::scatter_sub, &Variable::scatter_mul,
        &Variable::scatter_div, &Variable::scatter_min, &Variable::scatter_max,
        &Variable::scatter_update}) {
    const torch::Tensor there = (remote.*scatter)({rows, ids}, true);
    const torch::Tensor here = (local.*scatter)({rows, ids}, true);
    CHECK(torch::allclose(there, here));
  }
  CHECK_THROWS_AS(remote.scatter_add({rows, torch::full({7}, 32, torch::kLong)}), Error);
}

TEST_CASE("a killed server is PsUnavailable for who reads and writes", "[strategy][unit][CCF-10]") {
  Servers servers;
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", 1.0);
  const Variable w = Variable::create("w", 2.0);
  servers.cluster.Restart(1);
  CHECK(v.item<float>() == 1);
  try {
    (void)w.value();
    FAIL("read from a lost server");
  } catch (const PsUnavailable& error) {
    CHECK(error.details().origin == ErrorOrigin::kParameterServer);
    CHECK(error.details().task == "ps:1");
  }
  CHECK_THROWS_AS(w.assign(3), PsUnavailable);
}

}  // namespace
}  // namespace muster
