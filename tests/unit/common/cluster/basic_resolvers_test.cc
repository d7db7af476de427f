#include "common/cluster/basic_resolvers.h"

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"
#include "tests/unit/common/cluster/fake_devices.h"

namespace muster::cluster {
namespace {

constexpr const char* kTfConfig = R"({
    "cluster": {"ps": ["ps0:2222", "ps1:2222"], "worker": ["worker0:2222", "worker1:2222"]},
    "task": {"type": "ps", "index": 0}})";

TfConfigResolver WithTfConfig(const std::string& text, TfConfigResolver::Options options = {}) {
  return TfConfigResolver(FixedEnvironment({{"TF_CONFIG", text}}), std::move(options));
}

TEST_CASE("TF_CONFIG gives cluster and task", "[cluster][unit][spec][TFC-01]") {
  TfConfigResolver resolver = WithTfConfig(kTfConfig);

  CHECK(resolver.Cluster().value().ToString() ==
        "ClusterSpec({'ps': ['ps0:2222', 'ps1:2222'], 'worker': ['worker0:2222', "
        "'worker1:2222']})");
  CHECK(resolver.TaskType().value() == "ps");
  CHECK(resolver.TaskId().value() == 0);
  CHECK_FALSE(resolver.RpcLayer().value().has_value());
}

TEST_CASE("TF_CONFIG is read anew on each call", "[cluster][unit][spec][TFC-01]") {
  std::string text = kTfConfig;
  TfConfigResolver resolver([&](const std::string&) { return std::optional<std::string>(text); });
  REQUIRE(resolver.Cluster().value().NumTasks("worker").value() == 2);

  text =
      R"({"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 2}})";

  CHECK(resolver.Cluster().value().NumTasks("worker").value() == 3);
  CHECK(resolver.Master().value() == "c:1");
}

TEST_CASE("the master is this task's address, or the one asked for",
          "[cluster][unit][spec][TFC-02]") {
  TfConfigResolver plain = WithTfConfig(kTfConfig);
  TfConfigResolver grpc = WithTfConfig(
      R"({"cluster": {"ps": ["ps0:2222"], "worker": ["w0:1", "w1:1"]}, "rpc_layer": "grpc",
          "task": {"type": "ps", "index": 0}})");

  CHECK(plain.Master().value() == "ps0:2222");
  CHECK(plain.Master({.task_type = "worker", .task_id = 1}).value() == "worker1:2222");
  CHECK(plain.Master({.task_type = "worker"}).value() == "worker0:2222");
  CHECK(plain.Master({.task_id = 1}).value() == "ps1:2222");
  CHECK(grpc.Master().value() == "grpc://ps0:2222");
  CHECK(grpc.Master({.task_type = "worker", .task_id = 1}).value() == "grpc://w1:1");
  CHECK(grpc.Master({.rpc_layer = "test"}).value() == "test://ps0:2222");
  CHECK(plain.Master({.task_type = "worker", .task_id = 2}).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("a session_master is returned as it is", "[cluster][unit][spec][TFC-03]") {
  TfConfigResolver resolver = WithTfConfig(
      R"({"session_master": "sessionmaster:2222", "rpc_layer": "grpc",
          "cluster": {"ps": ["ps0:2222"], "worker": ["w0:1"]}, "task": {"type": "ps", "index": 0}})");
  TfConfigResolver alone = WithTfConfig(R"({"session_master": "x"})");

  CHECK(resolver.Master().value() == "sessionmaster:2222");
  CHECK(resolver.Master({.task_type = "worker", .task_id = 0}).value() == "sessionmaster:2222");
  CHECK(alone.Master().value() == "x");
}

TEST_CASE("a single task is its own master", "[cluster][unit][spec][TFC-04]") {
  CHECK(WithTfConfig("{}").Master().value().empty());
  CHECK(WithTfConfig(R"({"cluster": {"worker": ["w0:1"]}, "rpc_layer": "grpc",
                         "task": {"type": "worker", "index": 0}})")
            .Master()
            .value()
            .empty());
  CHECK(WithTfConfig(R"({"cluster": {"worker": {"4": "w4:1"}}})").Master().value().empty());
}

TEST_CASE("a type may be a number, an index text", "[cluster][unit][spec][TFC-05]") {
  TfConfigResolver resolver = WithTfConfig(
      R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": 123456, "index": "1"}})");

  CHECK(resolver.TaskType().value() == "123456");
  CHECK(resolver.TaskId().value() == 1);
}

TEST_CASE("what the caller sets wins over TF_CONFIG", "[cluster][unit][spec][TFC-06]") {
  TfConfigResolver resolver =
      WithTfConfig(kTfConfig, {.task = {.task_type = "ps", .task_id = 1, .rpc_layer = "http"}});
  CHECK(resolver.Master().value() == "http://ps1:2222");

  CHECK(resolver.SetTaskType("worker").ok());
  CHECK(resolver.SetTaskId(1).ok());
  CHECK(resolver.SetRpcLayer("test").ok());

  CHECK(resolver.TaskType().value() == "worker");
  CHECK(resolver.TaskId().value() == 1);
  CHECK(resolver.RpcLayer().value() == "test");
  CHECK(resolver.Master().value() == "test://worker1:2222");
}

TEST_CASE("a sparse job keeps its indices", "[cluster][unit][spec][TFC-07]") {
  TfConfigResolver resolver = WithTfConfig(
      R"({"cluster": {"ps": ["ps0:2222"], "worker": {"1": "worker1:2222"}},
          "task": {"type": "worker", "index": 1}})");

  CHECK(resolver.Cluster().value().TaskIndices("worker").value() == std::vector<int>{1});
  CHECK(resolver.Master().value() == "worker1:2222");
}

TEST_CASE("a lone task of a sparse job has a master: there are others", "[cluster][unit]") {
  const auto master = [](const std::string& worker) {
    return WithTfConfig("{\"cluster\": {\"worker\": " + worker +
                        "}, \"task\": {\"type\": \"worker\", \"index\": " +
                        (worker[0] == '[' ? "0" : "3") + "}}")
        .Master()
        .value();
  };
  CHECK(master(R"({"3": "worker3:2222"})") == "worker3:2222");
  CHECK(master(R"(["worker0:2222"])").empty());
}

TEST_CASE("accelerators are those of the task, without CPUs", "[cluster][unit][spec][TFC-08]") {
  FakeDevices devices({
      "/job:worker/replica:0/task:0/device:TPU:0", "/job:worker/replica:0/task:0/device:TPU:1",
      "/job:worker/replica:0/task:0/device:GPU:0", "/job:worker/replica:0/task:0/device:GPU:1",
      "/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:1/device:GPU:0",
      "/job:worker/replica:0/task:10/device:GPU:0",  // not of task 1
      "/job:worker2/replica:0/task:1/device:GPU:0",  // not of job worker
  });
  TfConfigResolver resolver = WithTfConfig(
      R"({"cluster": {"worker": ["w0:1", "w1:1"]}, "task": {"type": "worker", "index": 0}})",
      {.devices = &devices});

  CHECK(resolver.NumAccelerators().value() == AcceleratorCounts{{"GPU", 2}, {"TPU", 2}});
  CHECK(resolver.NumAccelerators({.task_type = "worker", .task_id = 1}).value() ==
        AcceleratorCounts{{"GPU", 1}});
  CHECK(devices.asked == std::vector<std::string>{"w0:1", "w1:1"});
  CHECK(WithTfConfig(kTfConfig).NumAccelerators().status().code() ==
        StatusCode::kFailedPrecondition);
}

TEST_CASE("the devices of a single task are those that this process calls its own",
          "[cluster][unit][spec][TFC-08]") {
  FakeDevices devices({"/job:localhost/replica:0/task:0/device:GPU:0",
                       "/job:localhost/replica:0/task:0/device:GPU:1",
                       "/job:localhost/replica:0/task:0/device:CPU:0",
                       "/job:worker/replica:0/task:1/device:GPU:0"});
  const auto count = [&](const std::string& workers, const ClusterTask& of = {}) {
    return WithTfConfig("{\"cluster\": {\"worker\": " + workers +
                            "}, \"task\": {\"type\": \"worker\", \"index\": 0}}",
                        {.devices = &devices})
        .NumAccelerators(of)
        .value();
  };

  CHECK(count(R"(["w0:1"])") == AcceleratorCounts{{"GPU", 2}});
  CHECK(count(R"(["w0:1"])", {.task_type = "ps", .task_id = 0}).empty());
  // A server that is asked would list somebody else's under that name.
  CHECK(count(R"(["w0:1", "w1:1"])").empty());
  CHECK(devices.asked == std::vector<std::string>{"", "", "w0:1"});
}

TEST_CASE("without TF_CONFIG there is no cluster and no task", "[cluster][unit][spec][TFC-09]") {
  for (const auto& environment : {FixedEnvironment({}), FixedEnvironment({{"TF_CONFIG", ""}})}) {
    TfConfigResolver resolver(environment);

    CHECK_FALSE(static_cast<bool>(resolver.Cluster().value()));
    CHECK_FALSE(resolver.TaskType().value().has_value());
    CHECK_FALSE(resolver.TaskId().value().has_value());
    CHECK(resolver.Master().value().empty());
  }
}

TEST_CASE("a bad TF_CONFIG fails every call, a cluster without a task the master",
          "[cluster][unit]") {
  TfConfigResolver bad = WithTfConfig("{");
  TfConfigResolver no_task = WithTfConfig(R"({"cluster": {"worker": ["a:1", "b:1"]}})");

  CHECK(bad.Cluster().status().code() == StatusCode::kInvalidArgument);
  CHECK(bad.Master().status().code() == StatusCode::kInvalidArgument);
  CHECK(bad.TaskId().status().code() == StatusCode::kInvalidArgument);
  CHECK(no_task.Master().status().code() == StatusCode::kFailedPrecondition);
}

const ClusterSpec kSpec = ClusterSpec::Dense(
    {{"ps", {"ps0:2222", "ps1:2222"}}, {"worker", {"w0:2222", "w1:2222", "w2:2222"}}});

TEST_CASE("Simple gives back what it was given", "[cluster][unit][spec][SIM-01]") {
  SimpleResolver resolver(kSpec, {.master = "m:1",
                                  .task = {.task_type = "ps", .task_id = 1, .rpc_layer = "grpc"},
                                  .environment_name = "google",
                                  .accelerators = {{"GPU", 3}}});

  CHECK(resolver.Cluster().value() == kSpec);
  CHECK(resolver.Master().value() == "grpc://m:1");
  CHECK(resolver.TaskType().value() == "ps");
  CHECK(resolver.TaskId().value() == 1);
  CHECK(resolver.RpcLayer().value() == "grpc");
  CHECK(resolver.EnvironmentName() == "google");
  CHECK(resolver.NumAccelerators().value() == AcceleratorCounts{{"GPU", 3}});

  REQUIRE(resolver.SetTaskType("worker").ok());
  REQUIRE(resolver.SetTaskId(2).ok());
  REQUIRE(resolver.SetRpcLayer("http").ok());
  CHECK(resolver.TaskType().value() == "worker");
  CHECK(resolver.TaskId().value() == 2);
  CHECK(resolver.Master().value() == "http://m:1");
}

TEST_CASE("Simple's master of a task is its address, of index 0 too",
          "[cluster][unit][spec][SIM-02]") {
  SimpleResolver resolver(kSpec);

  CHECK(resolver.Master({.task_type = "worker", .task_id = 2}).value() == "w2:2222");
  CHECK(resolver.Master({.task_type = "worker", .task_id = 2, .rpc_layer = "grpc"}).value() ==
        "grpc://w2:2222");
  CHECK(resolver.Master({.task_type = "worker", .task_id = 0}).value() == "w0:2222");
  CHECK(resolver.Master({.task_type = "ps", .task_id = 0}).value() == "ps0:2222");
  CHECK(resolver.Master({.rpc_layer = "grpc"}).value().empty());
}

TEST_CASE("Simple takes a spec and a text, or does not compile", "[cluster][unit][spec][SIM-03]") {
  STATIC_REQUIRE(std::is_constructible_v<SimpleResolver, ClusterSpec>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<SimpleResolver, std::string>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<SimpleResolver, int>);
  STATIC_REQUIRE_FALSE(
      std::is_assignable_v<decltype(SimpleResolver::Options::master)&, ClusterTask>);
}

TEST_CASE("Simple has no accelerators unless given", "[cluster][unit][spec][SIM-04]") {
  CHECK(SimpleResolver(kSpec).NumAccelerators().value().empty());
}

std::unique_ptr<ClusterResolver> Simple(ClusterSpec::Jobs jobs,
                                        SimpleResolver::Options options = {}) {
  return std::make_unique<SimpleResolver>(ClusterSpec::Create(std::move(jobs)).value(),
                                          std::move(options));
}

template <class... Resolvers>
std::unique_ptr<UnionResolver> Union(ClusterTask own, Resolvers... resolvers) {
  std::vector<std::unique_ptr<ClusterResolver>> list;
  (list.push_back(std::move(resolvers)), ...);
  return UnionResolver::Create(std::move(list), std::move(own)).value();
}

TEST_CASE("a union has the jobs of both", "[cluster][unit][spec][UNI-01]") {
  const auto resolver =
      Union({}, Simple({{"ps", {{0, "p0:1"}, {1, "p1:1"}}}}), Simple({{"worker", {{0, "w0:1"}}}}));

  CHECK(resolver->Cluster().value() ==
        ClusterSpec::Dense({{"ps", {"p0:1", "p1:1"}}, {"worker", {"w0:1"}}}));
}

TEST_CASE("lists of one job are put one behind the other", "[cluster][unit][spec][UNI-02]") {
  const auto resolver =
      Union({}, Simple({{"worker", {{0, "w4"}, {1, "w5"}}}}),
            Simple({{"worker", {{0, "w0"}, {1, "w1"}, {2, "w2"}}}, {"ps", {{0, "p0"}}}}));

  CHECK(resolver->Cluster().value() ==
        ClusterSpec::Dense({{"worker", {"w4", "w5", "w0", "w1", "w2"}}, {"ps", {"p0"}}}));
}

TEST_CASE("with a sparse one, tasks keep their indices and must not clash",
          "[cluster][unit][spec][UNI-03]") {
  const ClusterSpec::Jobs sparse = {{"worker", {{3, "w3"}, {5, "w5"}}}};
  const auto merged = Union({}, Simple({{"worker", {{0, "w0"}, {1, "w1"}}}}), Simple(sparse));
  const auto other_order = Union({}, Simple(sparse), Simple({{"worker", {{0, "w0"}}}}));
  const auto clash =
      Union({}, Simple({{"worker", {{0, "a"}, {1, "b"}}}}), Simple({{"worker", {{1, "c"}}}}));

  CHECK(merged->Cluster().value() ==
        ClusterSpec::Create({{"worker", {{0, "w0"}, {1, "w1"}, {3, "w3"}, {5, "w5"}}}}).value());
  CHECK(other_order->Cluster().value().TaskIndices("worker").value() == std::vector<int>{0, 3, 5});
  CHECK(ToString(clash->Cluster().status()) ==
        "ALREADY_EXISTS: two clusters of a union have a task worker:1: b and c");
}

TEST_CASE("a single sparse spec stays sparse", "[cluster][unit][spec][UNI-04]") {
  const auto resolver = Union({}, Simple({{"worker", {{1, "w1"}, {7, "w7"}}}}));

  CHECK(resolver->Cluster().value().TaskIndices("worker").value() == std::vector<int>{1, 7});
}

TEST_CASE("the first resolver speaks for a union unless overridden",
          "[cluster][unit][spec][UNI-05]") {
  const auto first = [] {
    return Simple({{"ps", {{0, "p0:1"}, {1, "p1:1"}}}},
                  {.master = "m1:1",
                   .task = {.task_type = "ps", .task_id = 1, .rpc_layer = "grpc"},
                   .environment_name = "one",
                   .accelerators = {{"GPU", 1}}});
  };
  const auto second = [] {
    return Simple({{"worker", {{0, "w0:1"}}}},
                  {.master = "m2:1", .task = {.task_type = "worker", .task_id = 0}});
  };
  const auto plain = Union({}, first(), second());
  const auto overridden =
      Union({.task_type = "worker", .task_id = 0, .rpc_layer = "test"}, first(), second());

  CHECK(plain->TaskType().value() == "ps");
  CHECK(plain->TaskId().value() == 1);
  CHECK(plain->RpcLayer().value() == "grpc");
  CHECK(plain->EnvironmentName() == "one");
  CHECK(plain->NumAccelerators().value() == AcceleratorCounts{{"GPU", 1}});
  CHECK(plain->Master().value() == "grpc://m1:1");
  CHECK(plain->Master({.task_type = "worker", .task_id = 0}).value() == "grpc://w0:1");
  CHECK(overridden->TaskType().value() == "worker");
  CHECK(overridden->TaskId().value() == 0);  // 0 is a value, not "missing"
  CHECK(overridden->RpcLayer().value() == "test");
  CHECK(overridden->Master({.task_type = "ps", .task_id = 0}).value() == "test://p0:1");
  CHECK(overridden->Master().value() == "grpc://m1:1");  // the first's, whoever this task is
  CHECK(overridden->Master({.task_type = "worker"}).value() == "grpc://m1:1");
  REQUIRE(overridden->SetTaskId(3).ok());
  CHECK(overridden->TaskId().value() == 3);
}

TEST_CASE("a union needs a resolver", "[cluster][unit][spec][UNI-06]") {
  std::vector<std::unique_ptr<ClusterResolver>> with_null;
  with_null.push_back(nullptr);

  CHECK(UnionResolver::Create({}).status().code() == StatusCode::kInvalidArgument);
  CHECK(UnionResolver::Create(std::move(with_null)).status().code() ==
        StatusCode::kInvalidArgument);
}

SageMakerResolver SageMaker(const std::string& hosts, const std::string& current,
                            SageMakerResolver::Options options = {}) {
  return SageMakerResolver(FixedEnvironment({{"SM_HOSTS", hosts}, {"SM_CURRENT_HOST", current}}),
                           std::move(options));
}

TEST_CASE("SageMaker's hosts are workers", "[cluster][unit][spec][SMK-01]") {
  SageMakerResolver resolver = SageMaker(R"(["algo-2","algo-1"])", "algo-2");
  SageMakerResolver other =
      SageMaker(R"(["c","a","b"])", "a", {.port = 80, .task = {.task_id = 2, .rpc_layer = "grpc"}});

  CHECK(resolver.Cluster().value() ==
        ClusterSpec::Dense({{"worker", {"algo-1:2223", "algo-2:2223"}}}));
  CHECK(resolver.TaskType().value() == "worker");
  CHECK(resolver.TaskId().value() == 1);
  CHECK(resolver.Master().value() == "algo-2:2223");
  CHECK(resolver.Master({.task_id = 0, .rpc_layer = "grpc"}).value() == "grpc://algo-1:2223");
  CHECK(other.Master().value() == "grpc://c:80");
}

TEST_CASE("a single host of SageMaker is its own master", "[cluster][unit][spec][SMK-02]") {
  CHECK(SageMaker(R"(["algo-1"])", "algo-1").Master().value().empty());
  CHECK(SageMaker("", "").Master().value().empty());
  CHECK(SageMaker("[]", "algo-1").Master().value().empty());
  CHECK_FALSE(SageMaker("", "").TaskType().value().has_value());
}

TEST_CASE("outside SageMaker that is said", "[cluster][unit][spec][SMK-03]") {
  SageMakerResolver nothing(FixedEnvironment({}));
  SageMakerResolver half(FixedEnvironment({{"SM_HOSTS", "[\"a\"]"}}));

  CHECK(ToString(nothing.Cluster().status()) ==
        "FAILED_PRECONDITION: Not a SageMaker Environment: SM_HOSTS is not set");
  CHECK(ToString(half.Master().status()) ==
        "FAILED_PRECONDITION: Not a SageMaker Environment: SM_CURRENT_HOST is not set");
}

TEST_CASE("SageMaker variables of another form are refused", "[cluster][unit]") {
  CHECK(SageMaker("[\"a\"", "a").Cluster().status().code() == StatusCode::kInvalidArgument);
  CHECK(SageMaker("{}", "a").Cluster().status().code() == StatusCode::kInvalidArgument);
  CHECK(SageMaker("[1]", "a").Cluster().status().code() == StatusCode::kInvalidArgument);
  CHECK(SageMaker("[\"a\"]", "b").Cluster().status().code() == StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::cluster
