#include "common/cluster/kubernetes_resolver.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/cluster/http_server.h"

namespace muster::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

json Pod(const std::string& name, const std::string& ip, const std::string& phase = "Running") {
  return {{"metadata", {{"name", name}}},
          {"status", {{"phase", phase}, {"podIP", ip}, {"hostIP", "192.168.0.1"}}}};
}

std::string Page(std::vector<json> pods, const std::string& next = {}) {
  json page = {{"kind", "PodList"}, {"items", std::move(pods)}};
  page["metadata"] = next.empty() ? json::object() : json{{"continue", next}};
  return HttpText(200, page.dump());
}

// Answers by the label selector that is asked for.
HttpServer::Handler BySelector(std::map<std::string, std::vector<json>> pods) {
  return [pods = std::move(pods)](const ServerRequest& request) -> std::optional<std::string> {
    for (const auto& [selector, list] : pods) {
      if (request.target.find("labelSelector=" + selector + "&") != std::string::npos) {
        return Page(list);
      }
    }
    return HttpText(404, "{}");
  };
}

std::unique_ptr<KubernetesResolver> OffCluster(const HttpServer& server,
                                               KubernetesResolver::Options options = {}) {
  options.location = ExecutableLocation::kOffCluster;
  options.endpoint = server.Url();
  return KubernetesResolver::Create(FixedEnvironment({}), std::move(options)).value();
}

TEST_CASE("a running pod is a worker", "[cluster][unit][spec][K8S-01]") {
  HttpServer server(BySelector({{"job-name%3Dtensorflow", {Pod("tensorflow-abc", "10.1.2.3")}}}));
  const auto resolver = OffCluster(server);

  CHECK(resolver->Cluster().value() == ClusterSpec::Dense({{"worker", {"10.1.2.3:8470"}}}));
  CHECK(server.Requests().at(0).method == "GET");
  CHECK(server.Requests().at(0).target ==
        "/api/v1/pods?labelSelector=job-name%3Dtensorflow&limit=500");
}

TEST_CASE("port, namespace and the host's address can be chosen", "[cluster][unit]") {
  json elsewhere = Pod("q", "fd00::1");
  elsewhere["status"]["hostIP"] = "192.168.0.2";
  HttpServer server(BySelector({{"a%3Db", {Pod("p", "10.1.2.3"), elsewhere}}}));
  KubernetesResolver::Options options{
      .selectors = {{"ps", {"a=b"}}}, .port = 99, .pod_namespace = "team/x"};

  CHECK(OffCluster(server, options)->Cluster().value() ==
        ClusterSpec::Dense({{"ps", {"10.1.2.3:99", "[fd00::1]:99"}}}));
  CHECK(server.Requests().at(0).target.find("/api/v1/namespaces/team%2Fx/pods?") == 0);
  options.use_host_ip = true;
  CHECK(OffCluster(server, options)->Cluster().value() ==
        ClusterSpec::Dense({{"ps", {"192.168.0.1:99", "192.168.0.2:99"}}}));
}

TEST_CASE("pods are sorted by name within a selector", "[cluster][unit][spec][K8S-02]") {
  HttpServer server(BySelector({
      {"job%3Da", {Pod("a-2", "10.0.0.3"), Pod("a-0", "10.0.0.1"), Pod("a-1", "10.0.0.2")}},
      {"job%3Db", {Pod("b-0", "10.0.0.9")}},
      {"job%3Dps", {Pod("x", "10.0.1.2"), Pod("w", "10.0.1.1")}},
  }));
  const auto resolver =
      OffCluster(server, {.selectors = {{"worker", {"job=b", "job=a"}}, {"ps", {"job=ps"}}}});

  CHECK(resolver->Cluster().value() ==
        ClusterSpec::Dense(
            {{"worker", {"10.0.0.9:8470", "10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.3:8470"}},
             {"ps", {"10.0.1.1:8470", "10.0.1.2:8470"}}}));
}

TEST_CASE("a list of pods that is null has none", "[cluster][unit]") {
  HttpServer server([](const ServerRequest&) -> std::optional<std::string> {
    return HttpText(200, R"({"kind": "PodList", "items": null})");
  });

  CHECK(OffCluster(server)->Cluster().value().CountTasks("worker") == 0);
}

TEST_CASE("a list of several pages is read to its end", "[cluster][unit][spec][K8S-02]") {
  HttpServer server([](const ServerRequest& request) -> std::optional<std::string> {
    if (request.target.find("&continue=next%3D%3D") != std::string::npos) {
      return Page({Pod("a", "10.0.0.1")});
    }
    return Page({Pod("b", "10.0.0.2")}, "next==");
  });

  CHECK(OffCluster(server)->Cluster().value() ==
        ClusterSpec::Dense({{"worker", {"10.0.0.1:8470", "10.0.0.2:8470"}}}));
}

TEST_CASE("a pod that does not run is named", "[cluster][unit][spec][K8S-03]") {
  HttpServer failed(BySelector(
      {{"job-name%3Dtensorflow", {Pod("a", "10.0.0.1"), Pod("x", "10.0.0.2", "Failed")}}}));
  HttpServer pending(BySelector({{"job-name%3Dtensorflow", {Pod("y", "", "Pending")}}}));
  HttpServer no_address(BySelector({{"job-name%3Dtensorflow", {Pod("z", "")}}}));

  CHECK(ToString(OffCluster(failed)->Cluster().status()) ==
        "FAILED_PRECONDITION: Pod \"x\" is not running; phase: \"Failed\"");
  CHECK(ToString(OffCluster(pending)->Cluster().status()) ==
        "FAILED_PRECONDITION: Pod \"y\" is not running; phase: \"Pending\"");
  CHECK(ToString(OffCluster(no_address)->Cluster().status()) ==
        "FAILED_PRECONDITION: Pod \"z\" has no address yet");
}

TEST_CASE("a pod that is being deleted is named, though its phase says that it runs",
          "[cluster][unit]") {
  json leaving = Pod("a", "10.0.0.1");
  leaving["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z";
  HttpServer server(BySelector({{"job-name%3Dtensorflow", {leaving, Pod("b", "10.0.0.2")}}}));

  CHECK(ToString(OffCluster(server)->Cluster().status()) ==
        "FAILED_PRECONDITION: Pod \"a\" is being deleted; ask again when it is gone");
}

TEST_CASE("no pod is two tasks, and no two tasks have one address", "[cluster][unit]") {
  HttpServer server(BySelector({{"a%3D1", {Pod("p", "10.0.0.1"), Pod("q", "10.0.0.2")}},
                                {"b%3D1", {Pod("q", "10.0.0.2")}}}));
  const auto refused = [&](KubernetesResolver::Options options) {
    return ToString(OffCluster(server, std::move(options))->Cluster().status());
  };

  CHECK(
      refused({.selectors = {{"ps", {"b=1"}}, {"worker", {"a=1"}}}}) ==
      "FAILED_PRECONDITION: Pod \"q\" is picked twice, as ps:0 and as worker:1; selectors may not "
      "overlap");
  CHECK(refused({.selectors = {{"worker", {"a=1"}}}, .use_host_ip = true}) ==
        "FAILED_PRECONDITION: Pods \"p\" (worker:0) and \"q\" (worker:1) have one address, "
        "192.168.0.1:8470; each task needs its own");
}

TEST_CASE("pods too large for one answer are asked for in smaller pages", "[cluster][unit]") {
  HttpServer server([](const ServerRequest& request) -> std::optional<std::string> {
    if (request.target.ends_with("&limit=500")) {
      json pod = Pod("a", "10.0.0.1");
      pod["metadata"]["annotations"]["all"] = std::string(33 << 20, 'x');
      return Page({pod});
    }
    if (request.target.ends_with("&limit=50")) return Page({Pod("a", "10.0.0.1")}, "next");
    if (request.target.ends_with("&limit=50&continue=next")) return Page({Pod("b", "10.0.0.2")});
    return HttpText(404, "{}");
  });

  CHECK(OffCluster(server)->Cluster().value() ==
        ClusterSpec::Dense({{"worker", {"10.0.0.1:8470", "10.0.0.2:8470"}}}));
}

TEST_CASE("a port that cannot be is refused", "[cluster][unit]") {
  CHECK(ToString(KubernetesResolver::Create(FixedEnvironment({}), {.port = 70'000}).status()) ==
        "INVALID_ARGUMENT: port 70000 is out of range; 1 to 65535 is allowed");
}

TEST_CASE("the master needs a task", "[cluster][unit][spec][K8S-04]") {
  HttpServer server(
      BySelector({{"job-name%3Dtensorflow", {Pod("a", "10.1.2.3"), Pod("b", "10.1.2.4")}}}));
  const auto resolver = OffCluster(server);

  CHECK(resolver->Master().value().empty());
  CHECK(resolver->Master({.task_type = "worker", .task_id = 1}).value() == "grpc://10.1.2.4:8470");
  REQUIRE(resolver->SetTaskType("worker").ok());
  REQUIRE(resolver->SetTaskId(0).ok());
  CHECK(resolver->Master().value() == "grpc://10.1.2.3:8470");
  CHECK(resolver->Master({.rpc_layer = "test"}).value() == "test://10.1.2.3:8470");
}

TEST_CASE("the executable is within the cluster or off it", "[cluster][unit][spec][K8S-05]") {
  KubernetesResolver::Options neither;
  neither.location = static_cast<ExecutableLocation>(7);

  CHECK(KubernetesResolver::Create(FixedEnvironment({}), neither).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(KubernetesResolver::Create(FixedEnvironment({}),
                                   {.location = ExecutableLocation::kOffCluster})
            .status()
            .code() == StatusCode::kInvalidArgument);
  const Status outside = KubernetesResolver::Create(FixedEnvironment({}), {}).status();
  CHECK(outside.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(outside).find("KUBERNETES_SERVICE_HOST is not set") != std::string::npos);
}

TEST_CASE("every call asks again", "[cluster][unit][spec][K8S-06]") {
  std::atomic<int> calls{0};
  HttpServer server([&](const ServerRequest&) -> std::optional<std::string> {
    std::vector<json> pods;
    for (int i = 0; i <= calls; ++i) {
      pods.push_back(Pod("p" + std::to_string(i), "10.0.0." + std::to_string(i + 1)));
    }
    ++calls;
    return Page(std::move(pods));
  });
  const auto resolver = OffCluster(server);

  CHECK(resolver->Cluster().value().NumTasks("worker").value() == 1);
  CHECK(resolver->Cluster().value().NumTasks("worker").value() == 2);
  CHECK(resolver->Cluster().value().NumTasks("worker").value() == 3);
}

TEST_CASE("within a cluster the API is found by environment, CA and token, read anew each time",
          "[cluster][unit]") {
  const testing::TempFolder directory;
  const Certificate own = MakeCertificate();
  HttpServer server(BySelector({{"job-name%3Dtensorflow", {Pod("a", "10.1.2.3")}}}), &own);
  const std::string port = server.Url().substr(server.Url().rfind(':') + 1);
  const Environment environment = FixedEnvironment(
      {{"KUBERNETES_SERVICE_HOST", "127.0.0.1"}, {"KUBERNETES_SERVICE_PORT", port}});
  const std::string token_file = directory.Write("token", "first\n");
  const auto resolver = KubernetesResolver::Create(
                            environment, {.ca_file = directory.Write("ca.crt", own.certificate),
                                          .token_file = token_file})
                            .value();

  CHECK(resolver->Cluster().ok());
  directory.Write("token", "second\n");
  CHECK(resolver->Cluster().ok());

  CHECK(server.Requests().at(0).authorization == "Bearer first");
  CHECK(server.Requests().at(1).authorization == "Bearer second");
}

TEST_CASE("an API server that fails is named, and never waited for without end",
          "[cluster][unit]") {
  const auto status_with = [](HttpServer::Handler handler,
                              std::chrono::milliseconds timeout = 60s) {
    HttpServer server(std::move(handler));
    const Status status = OffCluster(server, {.timeout = timeout})->Cluster().status();
    INFO(ToString(status));
    CHECK(Message(status).find(server.Url() + "/api/v1/pods") != std::string::npos);
    return status;
  };
  const auto always = [](std::string answer) {
    return [answer](const ServerRequest&) -> std::optional<std::string> { return answer; };
  };

  CHECK(status_with([](const ServerRequest&) { return std::nullopt; }, 300ms).code() ==
        StatusCode::kDeadlineExceeded);
  CHECK(status_with(always(HttpText(500, "etcd is gone"))).code() == StatusCode::kUnavailable);
  CHECK(status_with(always(HttpText(403, "no"))).code() == StatusCode::kPermissionDenied);
  CHECK(status_with(always(HttpText(200, "{\"items\": ["))).code() == StatusCode::kUnavailable);
  CHECK(status_with(always(HttpText(200, "{\"items\": 3}"))).code() == StatusCode::kUnavailable);
  // The same page for ever.
  CHECK(status_with(always(Page({}, "again")), 300ms).code() == StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace muster::cluster
