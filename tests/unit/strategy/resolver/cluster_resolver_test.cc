// The resolvers as a program of a user meets them. What each kind does with its source's answers:
// tests/unit/common/cluster.
#include "strategy/resolver/cluster_resolver.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stdlib.h>

#include "strategy/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/environment_variables.h"
#include "tests/unit/common/cluster/http_server.h"
#include "tests/unit/strategy/errors.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using cluster::HttpServer;
using cluster::HttpText;
using testing::code_of;
using testing::EnvironmentVariables;
using testing::throws;
using Tasks = std::vector<std::optional<std::string>>;
using Values = EnvironmentVariables::Values;

TEST_CASE("a cluster spec answers for dense and sparse jobs", "[strategy][unit]") {
  const ClusterSpec dense = ClusterSpec::dense({{"ps", {"a:1"}}, {"worker", {"b:1", "c:1"}}});
  const ClusterSpec sparse = ClusterSpec::sparse({{"worker", {{1, "b:1"}, {3, "c:1"}}}});

  CHECK(dense.jobs() == std::vector<std::string>{"ps", "worker"});
  CHECK(dense.num_tasks("worker") == 2);
  CHECK(dense.task_address("worker", 1) == "c:1");
  CHECK(dense == ClusterSpec::sparse({{"ps", {{0, "a:1"}}}, {"worker", {{0, "b:1"}, {1, "c:1"}}}}));
  CHECK(sparse.task_indices("worker") == std::vector<int>{1, 3});
  CHECK((sparse.job_tasks("worker") == Tasks{std::nullopt, "b:1", std::nullopt, "c:1"}));
  CHECK(sparse.to_string() == "ClusterSpec({'worker': {1: 'b:1', 3: 'c:1'}})");
  CHECK(bool(dense));
  CHECK_FALSE(bool(ClusterSpec()));

  CHECK(throws(ErrorCode::kInvalidArgument, "chief", [&] { (void)dense.num_tasks("chief"); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "2", [&] { (void)sparse.task_address("worker", 2); }));
  CHECK(code_of([] { (void)ClusterSpec::sparse({{"worker", {{-1, "a:1"}}}}); }) ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("TF_CONFIG is read anew, and what is broken in it is an error", "[strategy][unit]") {
  TFConfigClusterResolver resolver({.task = {.rpc_layer = "grpc"}});
  CHECK(resolver.cluster_spec() == ClusterSpec());
  CHECK(resolver.task_type() == std::nullopt);
  {
    const EnvironmentVariables variables(
        Values{{"TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:1"]},
                                                 "task": {"type": "worker", "index": 1}})"}});
    CHECK(resolver.cluster_spec() == ClusterSpec::dense({{"worker", {"a:1", "b:1"}}}));
    CHECK(resolver.task_type() == "worker");
    CHECK(resolver.task_id() == 1);
    CHECK(resolver.master() == "grpc://b:1");
    resolver.set_task_id(0);
    CHECK(resolver.master() == "grpc://a:1");
  }
  const EnvironmentVariables broken(Values{{"TF_CONFIG", R"({"cluster": )"}});
  CHECK(throws(ErrorCode::kInvalidArgument, "TF_CONFIG", [&] { (void)resolver.cluster_spec(); }));
}

TEST_CASE("accelerators are counted by the function that lists devices", "[strategy][unit]") {
  const EnvironmentVariables variables(
      Values{{"TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:1"]},
                                               "task": {"type": "worker", "index": 1}})"}});
  std::vector<std::string> asked;
  TFConfigClusterResolver resolver({.list_devices = [&](const std::string& master) {
    asked.push_back(master);
    return std::vector<std::string>{"/job:worker/replica:0/task:0/device:GPU:0",
                                    "/job:worker/replica:0/task:1/device:GPU:0",
                                    "/job:worker/replica:0/task:1/device:GPU:1"};
  }});
  TFConfigClusterResolver silent({.list_devices = [](const std::string&) {
    raise(ErrorCode::kDeadlineExceeded, "b:1 does not answer");
    return std::vector<std::string>();
  }});
  TFConfigClusterResolver without;

  CHECK(resolver.num_accelerators() == AcceleratorCounts{{"GPU", 2}});
  CHECK(resolver.num_accelerators({.task_type = "worker", .task_id = 0}) ==
        AcceleratorCounts{{"GPU", 1}});
  CHECK(asked.size() == 2);
  CHECK(throws(ErrorCode::kDeadlineExceeded, "b:1", [&] { (void)silent.num_accelerators(); }));
  CHECK(code_of([&] { (void)without.num_accelerators(); }) == ErrorCode::kFailedPrecondition);
}

// A user's own.
class OneWorker final : public ClusterResolver {
 public:
  explicit OneWorker(std::string address) : address_(std::move(address)) {}
  ClusterSpec cluster_spec() override {
    if (address_.empty()) raise(ErrorCode::kUnavailable, "nobody knows the worker");
    return ClusterSpec::dense({{"worker", {address_}}});
  }
  std::string master(const ClusterTask&) override { return address_; }

 private:
  const std::string address_;
};

TEST_CASE("a union joins resolvers of any kind, a user's own among them", "[strategy][unit]") {
  const auto fixed = std::make_shared<SimpleClusterResolver>(
      ClusterSpec::dense({{"ps", {"p:1"}}, {"worker", {"a:1"}}}),
      SimpleClusterResolver::Options{.task = {.task_type = "worker", .task_id = 0},
                                     .environment = "mine",
                                     .num_accelerators = {{"GPU", 4}}});
  UnionResolver both({fixed, std::make_shared<OneWorker>("b:1")}, {.task_id = 1});

  CHECK(both.cluster_spec() == ClusterSpec::dense({{"ps", {"p:1"}}, {"worker", {"a:1", "b:1"}}}));
  CHECK(both.task_type() == "worker");
  CHECK(both.task_id() == 1);
  CHECK(both.environment() == "mine");
  CHECK(both.num_accelerators() == AcceleratorCounts{{"GPU", 4}});
  CHECK(both.master({.task_type = "worker", .task_id = 1}) == "b:1");

  UnionResolver lost({std::make_shared<OneWorker>("")});
  CHECK(throws(ErrorCode::kUnavailable, "nobody knows", [&] { (void)lost.cluster_spec(); }));
  CHECK(code_of([] { UnionResolver({}); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([] { UnionResolver({nullptr}); }) == ErrorCode::kInvalidArgument);
  OneWorker own("b:1");
  CHECK(code_of([&] { own.set_task_type("chief"); }) == ErrorCode::kFailedPrecondition);
  CHECK(code_of([&] { (void)own.num_accelerators(); }) == ErrorCode::kFailedPrecondition);
}

TEST_CASE("Slurm's and SageMaker's variables make clusters", "[strategy][unit]") {
  const EnvironmentVariables variables(Values{{"SLURM_PROCID", "2"},
                                              {"SLURM_STEP_NODELIST", "n[1-2]"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                              {"SLURM_STEP_NUM_TASKS", "4"},
                                              {"SM_HOSTS", R"(["algo-1", "algo-2"])"},
                                              {"SM_CURRENT_HOST", "algo-2"}});
  SlurmClusterResolver slurm({.jobs = {{"ps", 1}, {"worker", 3}}, .gpus_per_node = 4});
  CHECK(slurm.cluster_spec() ==
        ClusterSpec::dense({{"ps", {"n1:8888"}}, {"worker", {"n1:8889", "n2:8888", "n2:8889"}}}));
  CHECK(slurm.task_type() == "worker");
  CHECK(slurm.task_id() == 1);
  CHECK(slurm.visible_gpus() == "0,1");
  SageMakerClusterResolver sage({.port = 5000});
  CHECK(sage.cluster_spec() == ClusterSpec::dense({{"worker", {"algo-1:5000", "algo-2:5000"}}}));
  CHECK(sage.task_id() == 1);

  CHECK(code_of([] { SlurmClusterResolver({.jobs = {{"worker", 3}}}); }) ==
        ErrorCode::kFailedPrecondition);
  const EnvironmentVariables broken(Values{{"SLURM_STEP_NODELIST", "n[1-"}});
  CHECK(throws(ErrorCode::kInvalidArgument, "n[1-", [] { SlurmClusterResolver(); }));
}

TEST_CASE("services are asked at the URL that is given, and their failures name it",
          "[strategy][unit]") {
  std::string answer = R"({"items": [{"metadata": {"name": "pod-0"},
                           "status": {"phase": "Running", "podIP": "10.0.0.7"}}]})";
  const HttpServer pods([&](const auto&) { return HttpText(200, answer); });
  KubernetesClusterResolver kubernetes(
      {.within_cluster = false, .endpoint = pods.Url(), .timeout = 60s});
  CHECK(kubernetes.cluster_spec() == ClusterSpec::dense({{"worker", {"10.0.0.7:8470"}}}));
  CHECK(code_of([] { KubernetesClusterResolver({.within_cluster = false}); }) ==
        ErrorCode::kInvalidArgument);

  const HttpServer failing([](const auto&) { return HttpText(500, "sorry"); });
  GCEClusterResolver gce({.project = "p",
                          .zone = "z",
                          .instance_group = "g",
                          .endpoint = failing.Url(),
                          .identity = {.metadata_endpoint = ""},
                          .timeout = 60s});
  CHECK(throws(ErrorCode::kUnavailable, failing.Url(), [&] { (void)gce.cluster_spec(); }));
  CHECK(code_of([&] { gce.set_task_type("chief"); }) == ErrorCode::kFailedPrecondition);

  const HttpServer silent([](const auto&) { return std::optional<std::string>(); });
  TPUClusterResolver tpu({.tpu = "mine",
                          .zone = "z",
                          .project = "p",
                          .endpoint = silent.Url(),
                          .identity = {.metadata_endpoint = ""},
                          .timeout = 50ms});
  CHECK(throws(ErrorCode::kDeadlineExceeded, silent.Url(), [&] { (void)tpu.cluster_spec(); }));
  TPUClusterResolver workers({.tpu = "grpc://10.0.0.2,10.0.0.3:1"});
  CHECK(workers.cluster_spec() ==
        ClusterSpec::dense({{"worker", {"10.0.0.2:8470", "10.0.0.3:1"}}}));
  CHECK(code_of([] { TPUClusterResolver(); }) == ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster
