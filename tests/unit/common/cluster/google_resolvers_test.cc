#include "common/cluster/google_resolvers.h"

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/cluster/fake_devices.h"
#include "tests/unit/common/cluster/http_server.h"

namespace muster::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Answers = std::map<std::string, std::string>;  // target -> body

HttpServer::Handler Serve(Answers answers) {
  return
      [answers = std::move(answers)](const ServerRequest& request) -> std::optional<std::string> {
        const auto found = answers.find(request.target);
        return found == answers.end() ? HttpText(404, "no " + request.target)
                                      : HttpText(200, found->second);
      };
}

const std::string kGroup = "/compute/v1/projects/p/zones/z/instanceGroups/g/listInstances";
const std::string kInstances = "/compute/v1/projects/p/zones/z/instances/";

std::string InstanceUrl(const std::string& name) {
  return "https://www.googleapis.com/compute/v1/projects/p/zones/z/instances/" + name;
}

std::string Details(const std::string& ip) {
  return json{{"networkInterfaces", {{{"networkIP", ip}}}}}.dump();
}

// A group whose instances have these addresses, in this order.
Answers Group(const std::vector<std::string>& ips) {
  Answers answers;
  json items = json::array();
  for (std::size_t i = 0; i < ips.size(); ++i) {
    const std::string name = "vm-" + std::to_string(i);
    items.push_back({{"instance", InstanceUrl(name)}, {"status", "RUNNING"}});
    answers[kInstances + name] = Details(ips[i]);
  }
  answers[kGroup + "?orderBy=name"] = json{{"items", items}}.dump();
  return answers;
}

GceResolver::Options Gce(const HttpServer& server) {
  return {.project = "p",
          .zone = "z",
          .instance_group = "g",
          .endpoint = server.Url(),
          .identity = {.metadata_endpoint = ""},
          .timeout = 60s};
}

TEST_CASE("the instances of a group are workers, sorted by address",
          "[cluster][unit][spec][GCE-01]") {
  HttpServer server(Serve(Group({"10.1.2.10", "10.1.2.9", "9.255.0.1"})));
  GceResolver resolver(Gce(server));

  CHECK(resolver.Cluster().value() ==
        ClusterSpec::Dense({{"worker", {"9.255.0.1:8470", "10.1.2.9:8470", "10.1.2.10:8470"}}}));
  CHECK(server.Requests().at(0).method == "POST");
  CHECK(json::parse(server.Requests().at(0).body) == json{{"instanceState", "RUNNING"}});
}

TEST_CASE("all pages are read and only running instances count", "[cluster][unit][spec][GCE-01]") {
  Answers answers;
  answers[kGroup + "?orderBy=name"] =
      json{{"items",
            {{{"instance", InstanceUrl("a")}, {"status", "RUNNING"}},
             {{"instance", InstanceUrl("b")}, {"status", "STOPPING"}}}},
           {"nextPageToken", "t/2"}}
          .dump();
  answers[kGroup + "?orderBy=name&pageToken=t%2F2"] =
      json{{"items", {{{"instance", InstanceUrl("c")}}}}}.dump();
  answers[kInstances + "a"] = Details("10.0.0.2");
  answers[kInstances + "c"] = Details("10.0.0.1");
  HttpServer server(Serve(answers));
  GceResolver::Options options = Gce(server);
  options.task_type = "ps";
  options.port = 2222;
  GceResolver resolver(options);

  CHECK(resolver.Cluster().value() ==
        ClusterSpec::Dense({{"ps", {"10.0.0.1:2222", "10.0.0.2:2222"}}}));
}

TEST_CASE("an empty group is a job without tasks", "[cluster][unit]") {
  HttpServer server(Serve({{kGroup + "?orderBy=name", "{}"}}));

  CHECK(GceResolver(Gce(server)).Cluster().value().NumTasks("worker").value() == 0);
}

TEST_CASE("the master is the task's address", "[cluster][unit][spec][GCE-02]") {
  HttpServer server(Serve(Group({"10.0.0.1", "10.0.0.2", "10.0.0.3"})));
  GceResolver resolver(Gce(server));
  GceResolver::Options nameless = Gce(server);
  nameless.task_type = "";
  GceResolver empty_type(nameless);

  CHECK(resolver.Master({.task_type = "worker", .task_id = 2, .rpc_layer = "test"}).value() ==
        "test://10.0.0.3:8470");
  CHECK(resolver.Master().value() == "grpc://10.0.0.1:8470");
  CHECK(resolver.Master({.task_id = 1}).value() == "grpc://10.0.0.2:8470");
  CHECK(resolver.RpcLayer().value() == "grpc");
  CHECK(empty_type.TaskType().value() == "");
  CHECK(empty_type.TaskId().value() == 0);
  CHECK(empty_type.Master().value() == "grpc://10.0.0.1:8470");
}

TEST_CASE("the job of a group cannot be changed later", "[cluster][unit][spec][GCE-03]") {
  HttpServer server(Serve(Group({"10.0.0.1", "10.0.0.2"})));
  GceResolver resolver(Gce(server));

  const Status status = resolver.SetTaskType("ps");
  CHECK(status.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(status).find("cannot reset the task_type") == 0);
  REQUIRE(resolver.SetTaskId(1).ok());
  REQUIRE(resolver.SetRpcLayer("http").ok());
  CHECK(resolver.Master().value() == "http://10.0.0.2:8470");
  CHECK(resolver.TaskType().value() == "worker");
}

TEST_CASE("the token is the metadata server's, or that of a file", "[cluster][unit]") {
  const testing::TempFolder directory;
  HttpServer metadata(Serve({{"/computeMetadata/v1/instance/service-accounts/default/token",
                              R"({"access_token": "from-metadata", "expires_in": 3000})"}}));
  HttpServer broken(Serve({{"/computeMetadata/v1/instance/service-accounts/default/token",
                            R"({"access_tok": "secret")"}}));
  HttpServer server(Serve(Group({"10.0.0.1"})));
  GceResolver::Options options = Gce(server);

  options.identity.metadata_endpoint = metadata.Url();
  CHECK(GceResolver(options).Cluster().ok());
  CHECK(metadata.Requests().size() == 1);
  CHECK(metadata.Requests().at(0).metadata_flavor == "Google");
  CHECK(server.Requests().back().authorization == "Bearer from-metadata");

  options.identity.token_file = directory.Write("token", "from-file\n");
  CHECK(GceResolver(options).Cluster().ok());
  CHECK(server.Requests().back().authorization == "Bearer from-file");

  options.identity = {.metadata_endpoint = broken.Url()};
  const Status status = GceResolver(options).Cluster().status();
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(Message(status).find("secret") == std::string::npos);
}

TEST_CASE("a Compute service that fails is named", "[cluster][unit]") {
  const auto status_with = [](HttpServer::Handler handler,
                              std::chrono::milliseconds timeout = 60s) {
    HttpServer server(std::move(handler));
    GceResolver::Options options = Gce(server);
    options.timeout = timeout;
    const Status status = GceResolver(options).Cluster().status();
    CHECK(Message(status).find(server.Url() + kGroup) != std::string::npos);
    return status.code();
  };

  CHECK(status_with([](const ServerRequest&) { return std::nullopt; }, 300ms) ==
        StatusCode::kDeadlineExceeded);
  CHECK(status_with([](const ServerRequest&) { return HttpText(500, "x"); }) ==
        StatusCode::kUnavailable);
  CHECK(status_with([](const ServerRequest&) { return HttpText(200, "{\"items\": [{"); }) ==
        StatusCode::kUnavailable);
  CHECK(status_with([](const ServerRequest&) { return HttpText(200, "[]"); }) ==
        StatusCode::kUnavailable);
  CHECK(status_with([](const ServerRequest&) { return HttpText(200, "{\"items\": [{}]}"); }) ==
        StatusCode::kUnavailable);
}

TEST_CASE("instances are asked at the same time and one that is silent holds up none",
          "[cluster][unit]") {
  const HttpServer::Handler answer = Serve(Group({"10.0.0.1", "10.0.0.2", "10.0.0.3"}));
  HttpServer server([&](const ServerRequest& request) -> std::optional<std::string> {
    if (request.target == kInstances + "vm-0") return std::nullopt;
    return answer(request);
  });
  GceResolver::Options options = Gce(server);
  options.timeout = 2s;

  const Status status = GceResolver(options).Cluster().status();

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(status).find("vm-0") != std::string::npos);
  CHECK(server.Requests().size() == 4);
}

TEST_CASE("of a thousand instances all addresses are found", "[cluster][unit]") {
  std::vector<std::string> ips;
  std::vector<std::string> addresses;
  for (int i = 0; i < 1'000; ++i) {
    ips.push_back("10.0." + std::to_string(i / 250) + "." + std::to_string(i % 250));
    addresses.push_back(ips.back() + ":8470");
  }
  HttpServer server(Serve(Group(ips)));

  CHECK(GceResolver(Gce(server)).Cluster().value() == ClusterSpec::Dense({{"worker", addresses}}));
}

const std::string kNode = "/v1/projects/p/locations/z/nodes/my-tpu";

std::string ReadyNode() {
  return json{{"state", "READY"},
              {"health", "HEALTHY"},
              {"networkEndpoints",
               {{{"ipAddress", "10.1.2.3"}, {"port", 8470}},
                {{"ipAddress", "10.1.2.4"}, {"port", "8471"}}}}}
      .dump();
}

TpuResolver::Options Tpu(const HttpServer& server) {
  return {.tpu = "my-tpu",
          .zone = "z",
          .project = "p",
          .endpoint = server.Url(),
          .identity = {.metadata_endpoint = ""},
          .timeout = 60s};
}

std::unique_ptr<TpuResolver> MakeTpu(TpuResolver::Options options) {
  return TpuResolver::Create(FixedEnvironment({}), std::move(options)).value();
}

TEST_CASE("a TPU's workers are its endpoints", "[cluster][unit][spec][TPR-01]") {
  HttpServer server(Serve({{kNode, ReadyNode()}}));
  TpuResolver::Options with_coordinator = Tpu(server);
  with_coordinator.job_name = "tpu_worker";
  with_coordinator.coordinator_name = "coordinator";
  with_coordinator.coordinator_address = "10.128.1.5:10203";

  CHECK(MakeTpu(Tpu(server))->Cluster().value() ==
        ClusterSpec::Dense({{"worker", {"10.1.2.3:8470", "10.1.2.4:8471"}}}));
  CHECK(MakeTpu(with_coordinator)->Cluster().value() ==
        ClusterSpec::Dense({{"coordinator", {"10.128.1.5:10203"}},
                            {"tpu_worker", {"10.1.2.3:8470", "10.1.2.4:8471"}}}));
  with_coordinator.coordinator_name = "tpu_worker";
  CHECK(
      ToString(TpuResolver::Create(FixedEnvironment({}), with_coordinator).status()) ==
      "INVALID_ARGUMENT: the coordinator and the workers are one job, \"tpu_worker\"; give one of "
      "them another name");
  with_coordinator.coordinator_address = "";
  CHECK(TpuResolver::Create(FixedEnvironment({}), with_coordinator).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("project and zone come from the metadata server where they are not given",
          "[cluster][unit][spec][TPR-01]") {
  HttpServer metadata(Serve({{"/computeMetadata/v1/project/project-id", "p"},
                             {"/computeMetadata/v1/instance/zone", "projects/1234/zones/z"},
                             {"/computeMetadata/v1/instance/service-accounts/default/token",
                              R"({"access_token": "t"})"}}));
  // An old node has its one address in itself.
  HttpServer server(
      Serve({{kNode, R"({"state": "READY", "ipAddress": "10.9.9.9", "port": "1"})"}}));
  TpuResolver::Options options = Tpu(server);
  options.project = options.zone = options.tpu = "";
  options.identity.metadata_endpoint = metadata.Url();

  const auto resolver =
      TpuResolver::Create(FixedEnvironment({{"TPU_NAME", "my-tpu"}}), options).value();

  CHECK(resolver->Cluster().value() == ClusterSpec::Dense({{"worker", {"10.9.9.9:1"}}}));
  CHECK(server.Requests().at(0).authorization == "Bearer t");
}

TEST_CASE("a TPU may be named by its addresses, or not at all", "[cluster][unit]") {
  const auto of = [](const std::string& tpu) { return MakeTpu({.tpu = tpu})->Cluster(); };

  CHECK(of("grpc://10.2.3.4:8470").value() == ClusterSpec::Dense({{"worker", {"10.2.3.4:8470"}}}));
  CHECK(of("grpc://10.2.3.4,grpc://10.2.3.5:1").value() ==
        ClusterSpec::Dense({{"worker", {"10.2.3.4:8470", "10.2.3.5:1"}}}));
  CHECK(of("grpc://10.2.3.4:99999").status().code() == StatusCode::kInvalidArgument);
  CHECK(TpuResolver::Create(FixedEnvironment({}), {}).status().code() ==
        StatusCode::kInvalidArgument);
  const auto by_gke = TpuResolver::Create(
      FixedEnvironment({{"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://10.0.0.1:2"}}), {});
  CHECK(by_gke.value()->Master().value() == "grpc://10.0.0.1:2");
}

TEST_CASE("a TPU that is not ready is named with its state", "[cluster][unit]") {
  HttpServer creating(Serve({{kNode, R"({"state": "CREATING"})"}}));
  HttpServer portless(Serve({{kNode, R"({"state": "READY", "ipAddress": "10.0.0.1"})"}}));
  HttpServer nowhere(Serve({}));

  CHECK(ToString(MakeTpu(Tpu(creating))->Cluster().status()) ==
        "FAILED_PRECONDITION: TPU \"my-tpu\" is not yet ready; state: \"CREATING\"");
  CHECK(MakeTpu(Tpu(portless))->Cluster().status().code() == StatusCode::kUnavailable);
  CHECK(MakeTpu(Tpu(nowhere))->Cluster().status().code() == StatusCode::kNotFound);
}

TEST_CASE("the TPU of this host needs no cluster", "[cluster][unit][spec][TPR-02]") {
  FakeDevices devices({"/job:localhost/replica:0/task:0/device:TPU:0",
                       "/job:localhost/replica:0/task:0/device:TPU:1",
                       "/job:localhost/replica:0/task:0/device:CPU:0"});
  const auto resolver = MakeTpu({.tpu = "local", .devices = &devices});

  CHECK_FALSE(static_cast<bool>(resolver->Cluster().value()));
  CHECK(resolver->Master().value().empty());
  CHECK(resolver->NumAccelerators().value() == AcceleratorCounts{{"TPU", 2}});
  CHECK(devices.asked == std::vector<std::string>{""});
}

TEST_CASE("a TPU's master is its first worker unless told otherwise",
          "[cluster][unit][spec][TPR-03]") {
  HttpServer server(Serve({{kNode, ReadyNode()}}));
  const auto resolver = MakeTpu(Tpu(server));

  CHECK(resolver->Master().value() == "grpc://10.1.2.3:8470");
  CHECK(resolver->Master({.task_type = "worker", .task_id = 1}).value() == "grpc://10.1.2.4:8471");
  REQUIRE(resolver->SetTaskId(1).ok());
  CHECK(resolver->Master().value() == "grpc://10.1.2.4:8471");
}

std::vector<std::string> Cores(std::vector<int> per_host) {
  std::vector<std::string> names = {"/job:worker/replica:0/task:0/device:CPU:0",
                                    "/job:worker/replica:0/task:0/device:TPU_SYSTEM:0"};
  for (std::size_t host = 0; host < per_host.size(); ++host) {
    for (int core = 0; core < per_host[host]; ++core) {
      names.push_back("/job:worker/replica:0/task:" + std::to_string(host) +
                      "/device:TPU:" + std::to_string(core));
    }
  }
  return names;
}

TEST_CASE("TPU cores are counted by host", "[cluster][unit][spec][TPR-04]") {
  const auto count = [](std::vector<int> per_host) {
    FakeDevices devices(Cores(std::move(per_host)));
    return MakeTpu({.tpu = "grpc://10.0.0.1:1", .devices = &devices})->NumAccelerators();
  };

  CHECK(count({8, 8}).value() == AcceleratorCounts{{"TPU", 8}});
  CHECK(count({4, 4, 4}).value() == AcceleratorCounts{{"TPU", 4}});
  CHECK(count({}).value() == AcceleratorCounts{{"TPU", 0}});
  const Status unequal = count({8, 4}).status();
  CHECK(unequal.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(unequal).find("8 on worker:0, 4 on worker:1") != std::string::npos);
}

TEST_CASE("an unreachable TPU is asked 120 times more", "[cluster][unit][spec][TPR-05]") {
  FakeDevices slow(Cores({2, 2}));
  slow.fail_next = 120;
  FakeDevices dead(Cores({2}));
  dead.fail_next = 1'000'000;
  FakeDevices broken(Cores({2}));
  broken.fail_next = 1;
  broken.fail_with = StatusCode::kInternal;
  const auto count = [](FakeDevices& devices) {
    return MakeTpu({.tpu = "grpc://10.0.0.1:1", .devices = &devices})->NumAccelerators();
  };

  CHECK(count(slow).value() == AcceleratorCounts{{"TPU", 2}});
  CHECK(slow.asked.size() == 121);
  const Status status = count(dead).status();
  CHECK(status.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(status).find("Failed to connect to master grpc://10.0.0.1:1") == 0);
  CHECK(dead.asked.size() == 121);
  CHECK(count(broken).status().code() == StatusCode::kInternal);
  CHECK(broken.asked.size() == 1);
}

}  // namespace
}  // namespace muster::cluster
