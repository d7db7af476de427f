#include "common/cluster/kubernetes_resolver.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "common/base/host_port.h"
#include "common/base/ids.h"
#include "common/cluster/http_client.h"
#include "common/cluster/json_fields.h"

namespace muster::cluster {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kAccount = "/var/run/secrets/kubernetes.io/serviceaccount/";
constexpr int kPodsPerPage = 500;

std::string NameOf(const json& pod) { return TextAt(pod, "/metadata/name"); }

// Which addresses are taken, and by whom: one pod is one task.
class Addresses {
 public:
  Status Take(const std::string& address, const json& pod, TaskId task) {
    const Holder holder{.pod_namespace = TextAt(pod, "/metadata/namespace"),
                        .name = NameOf(pod),
                        .task = std::move(task)};
    const auto [at, fresh] = taken_.emplace(address, holder);
    if (fresh) return Ok();
    const Holder& first = at->second;
    if (first.name == holder.name && first.pod_namespace == holder.pod_namespace) {
      return FailedPrecondition(
          "Pod \"{}\" is picked twice, as {} and as {}; selectors may not overlap", holder.name,
          first.task.ToString(), holder.task.ToString());
    }
    return FailedPrecondition(
        "Pods \"{}\" ({}) and \"{}\" ({}) have one address, {}; each task needs its own",
        first.name, first.task.ToString(), holder.name, holder.task.ToString(), address);
  }

 private:
  struct Holder {
    std::string pod_namespace;
    std::string name;
    TaskId task;
  };
  std::map<std::string, Holder> taken_;
};

}  // namespace

Result<std::unique_ptr<KubernetesResolver>> KubernetesResolver::Create(
    const Environment& environment, Options options) {
  MUSTER_TRY(CheckPort(options.port));
  if (options.location == ExecutableLocation::kOffCluster) {
    if (options.endpoint.empty()) {
      return InvalidArgument("off cluster the URL of the Kubernetes API must be given");
    }
  } else if (options.location == ExecutableLocation::kWithinCluster) {
    if (options.endpoint.empty()) {
      const std::string host = environment("KUBERNETES_SERVICE_HOST").value_or("");
      const std::string port = environment("KUBERNETES_SERVICE_PORT").value_or("");
      if (host.empty() || port.empty()) {
        return FailedPrecondition(
            "not within a Kubernetes cluster: KUBERNETES_SERVICE_{} is not set",
            host.empty() ? "HOST" : "PORT");
      }
      options.endpoint = "https://" + JoinHostPort(host, port);
    }
    if (options.ca_file.empty()) options.ca_file = std::string(kAccount) + "ca.crt";
    if (options.token_file.empty()) options.token_file = std::string(kAccount) + "token";
  } else {
    return InvalidArgument("executable location {}; within_cluster or off_cluster is allowed",
                           static_cast<int>(options.location));
  }
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  return std::unique_ptr<KubernetesResolver>(new KubernetesResolver(std::move(options)));
}

KubernetesResolver::KubernetesResolver(Options options)
    : ClusterResolver({.rpc_layer = options.rpc_layer}, options.devices),
      options_(std::move(options)) {}

// Pods are of any size. Where a page is longer than an answer may be, all of the list is asked for
// again in smaller ones: a server's word to continue is for pages of the same size.
Result<std::vector<json>> KubernetesResolver::ListPods(const std::string& selector,
                                                       Clock::time_point deadline) const {
  for (int per_page = kPodsPerPage;; per_page = std::max(1, per_page / 10)) {
    Result<std::vector<json>> pods = ListPages(selector, per_page, deadline);
    if (per_page == 1 || pods.status().code() != StatusCode::kResourceExhausted) return pods;
  }
}

Result<std::vector<json>> KubernetesResolver::ListPages(const std::string& selector,
                                                        int pods_per_page,
                                                        Clock::time_point deadline) const {
  HttpRequest request;
  if (!options_.token_file.empty()) {
    MUSTER_TRY_ASSIGN(const std::string token, ReadTokenFile(options_.token_file));
    MUSTER_TRY_ASSIGN(auto header, BearerHeader(token, options_.endpoint));
    request.headers.push_back(std::move(header));
  }
  const std::string scope =
      options_.pod_namespace.empty() ? "" : "/namespaces/" + PercentEncode(options_.pod_namespace);
  const std::string first =
      fmt::format("{}/api/v1{}/pods?labelSelector={}&limit={}", options_.endpoint, scope,
                  PercentEncode(selector), pods_per_page);
  std::vector<json> pods;
  std::string next;
  do {
    request.url = next.empty() ? first : first + "&continue=" + PercentEncode(next);
    MUSTER_TRY_ASSIGN(json page,
                      FetchJson(request, {.deadline = deadline, .ca_file = options_.ca_file}));
    const json* items = ListAt(page, "/items");
    // A server without pods may say null, which is how Go writes an empty list.
    const json::json_pointer at("/items");
    const bool none = page.contains(at) && page.at(at).is_null();
    if (items == nullptr && !none) {
      return Unavailable("GET {}: the answer has no list of pods (\"items\")", request.url);
    }
    if (items != nullptr) pods.insert(pods.end(), items->begin(), items->end());
    next = TextAt(page, "/metadata/continue");
  } while (!next.empty());
  std::stable_sort(pods.begin(), pods.end(),
                   [](const json& a, const json& b) { return NameOf(a) < NameOf(b); });
  return pods;
}

Result<std::string> KubernetesResolver::AddressOf(const json& pod) const {
  const std::string phase = TextAt(pod, "/status/phase");
  if (phase != "Running") {
    return FailedPrecondition("Pod \"{}\" is not running; phase: \"{}\"", NameOf(pod), phase);
  }
  // Its phase stays Running until its last process has ended, while the one that takes its place
  // may run already.
  if (!TextAt(pod, "/metadata/deletionTimestamp").empty()) {
    return FailedPrecondition("Pod \"{}\" is being deleted; ask again when it is gone",
                              NameOf(pod));
  }
  const std::string host = TextAt(pod, options_.use_host_ip ? "/status/hostIP" : "/status/podIP");
  if (host.empty()) return FailedPrecondition("Pod \"{}\" has no address yet", NameOf(pod));
  return JoinHostPort(host, options_.port);
}

Result<ClusterSpec> KubernetesResolver::Cluster() {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  ClusterSpec::DenseJobs jobs;
  Addresses taken;
  for (const auto& [job, selectors] : options_.selectors) {
    std::vector<std::string>& addresses = jobs[job];
    for (const std::string& selector : selectors) {
      MUSTER_TRY_ASSIGN(const std::vector<json> pods, ListPods(selector, deadline));
      for (const json& pod : pods) {
        MUSTER_TRY_ASSIGN(std::string address, AddressOf(pod));
        MUSTER_TRY(
            taken.Take(address, pod, muster::TaskId{job, static_cast<int>(addresses.size())}));
        addresses.push_back(std::move(address));
      }
    }
  }
  return ClusterSpec::Dense(jobs);
}

}  // namespace muster::cluster
