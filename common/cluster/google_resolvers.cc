#include "common/cluster/google_resolvers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <tuple>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/host_port.h"
#include "common/base/words.h"
#include "common/cluster/device_name.h"
#include "common/cluster/http_client.h"
#include "common/cluster/json_fields.h"
#include "common/process/several_at_once.h"

namespace muster::cluster {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Addresses in numeric order, IPv4 first; what is no address comes last, as text.
std::tuple<int, std::array<unsigned char, 16>, std::string> AddressOrder(const std::string& ip) {
  std::array<unsigned char, 16> bytes{};
  if (inet_pton(AF_INET, ip.c_str(), bytes.data()) == 1) return {0, bytes, ""};
  if (inet_pton(AF_INET6, ip.c_str(), bytes.data()) == 1) return {1, bytes, ""};
  return {2, {}, ip};
}

// Each question is a connection of its own: a thousand, one after another, take longer than a call
// has time.
constexpr std::size_t kAskAtOnce = 16;

std::string LastSegment(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// A port as the service writes it: text or number.
std::string PortOf(const json& endpoint) {
  const auto found = endpoint.find("port");
  if (found == endpoint.end()) return "";
  if (found->is_number_unsigned()) return found->dump();
  return found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

// --- Compute Engine ------------------------------------------------------------------------------

GceResolver::GceResolver(Options options)
    : ClusterResolver({.task_type = options.task_type,
                       .task_id = options.task_id,
                       .rpc_layer = options.rpc_layer},
                      options.devices),
      options_(std::move(options)) {}

Status GceResolver::SetTaskType(const std::string& type) {
  return FailedPrecondition(
      "cannot reset the task_type to \"{}\": the instance group {} is job \"{}\"", type,
      options_.instance_group, options_.task_type);
}

Result<std::vector<std::string>> GceResolver::ListInstances(GoogleApi& api) const {
  const std::string path =
      fmt::format("/compute/v1/projects/{}/zones/{}/instanceGroups/{}/listInstances?orderBy=name",
                  PercentEncode(options_.project), PercentEncode(options_.zone),
                  PercentEncode(options_.instance_group));
  std::vector<std::string> names;
  std::string next;
  do {
    const std::string page_path = next.empty() ? path : path + "&pageToken=" + PercentEncode(next);
    MUSTER_TRY_ASSIGN(const json page, api.Post(page_path, R"({"instanceState": "RUNNING"})"));
    if (!page.is_object()) {
      return Unavailable("POST {}{}: the answer is no object", options_.endpoint, page_path);
    }
    // An empty group has no "items" at all.
    if (const json* items = ListAt(page, "/items")) {
      for (const json& item : *items) {
        const std::string status = TextAt(item, "/status");
        const std::string name = LastSegment(TextAt(item, "/instance"));
        if (name.empty()) {
          return Unavailable("POST {}{}: an instance has no name", options_.endpoint, page_path);
        }
        if (status.empty() || status == "RUNNING") names.push_back(name);
      }
    }
    next = TextAt(page, "/nextPageToken");
  } while (!next.empty());
  return names;
}

Result<std::string> GceResolver::AddressOf(GoogleApi& api, const std::string& instance) const {
  MUSTER_TRY_ASSIGN(const json details,
                    api.Get(fmt::format("/compute/v1/projects/{}/zones/{}/instances/{}",
                                        PercentEncode(options_.project),
                                        PercentEncode(options_.zone), PercentEncode(instance))));
  const std::string ip = TextAt(details, "/networkInterfaces/0/networkIP");
  if (ip.empty()) return FailedPrecondition("instance {} has no network address", instance);
  return ip;
}

// In the order of the instances; of several errors that of the first one of these. After an error
// nothing more is asked.
Result<std::vector<std::string>> GceResolver::AddressesOf(
    const GoogleApi& api, const std::vector<std::string>& instances) const {
  std::vector<std::string> ips(instances.size());
  std::vector<Status> errors(instances.size());
  std::atomic<bool> failed{false};
  process::SeveralAtOnce(instances.size(), kAskAtOnce, [&](std::size_t i) {
    if (failed) return;
    GoogleApi own = api;  // with the token that the list of instances was asked with
    auto ip = AddressOf(own, instances[i]);
    errors[i] = ip.status();
    if (ip.ok()) {
      ips[i] = *std::move(ip);
    } else {
      failed = true;
    }
  });
  for (const Status& error : errors) MUSTER_TRY(error);
  return ips;
}

Result<ClusterSpec> GceResolver::Cluster() {
  MUSTER_TRY(CheckPort(options_.port));
  GoogleApi api(options_.identity, options_.endpoint, Clock::now() + options_.timeout);
  MUSTER_TRY_ASSIGN(const std::vector<std::string> instances, ListInstances(api));
  MUSTER_TRY_ASSIGN(std::vector<std::string> addresses, AddressesOf(api, instances));
  std::sort(addresses.begin(), addresses.end(), [](const std::string& a, const std::string& b) {
    return AddressOrder(a) < AddressOrder(b);
  });
  for (std::string& address : addresses) {
    address = JoinHostPort(address, options_.port);
  }
  return ClusterSpec::Dense({{options_.task_type, addresses}});
}

// --- Cloud TPU -----------------------------------------------------------------------------------

Result<std::unique_ptr<TpuResolver>> TpuResolver::Create(const Environment& environment,
                                                         Options options) {
  for (const char* variable : {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME"}) {
    if (options.tpu.empty()) options.tpu = environment(variable).value_or("");
  }
  if (options.tpu.empty()) {
    return InvalidArgument("no TPU is named; give its name, or set TPU_NAME");
  }
  if (options.coordinator_name.empty() != options.coordinator_address.empty()) {
    return InvalidArgument("a coordinator has a name and an address; \"{}\" and \"{}\" are given",
                           options.coordinator_name, options.coordinator_address);
  }
  if (!options.coordinator_name.empty() && options.coordinator_name == options.job_name) {
    return InvalidArgument(
        "the coordinator and the workers are one job, \"{}\"; give one of them another name",
        options.job_name);
  }
  return std::unique_ptr<TpuResolver>(new TpuResolver(std::move(options)));
}

TpuResolver::TpuResolver(Options options)
    : ClusterResolver({.task_type = options.job_name, .task_id = 0, .rpc_layer = "grpc"},
                      options.devices),
      options_(std::move(options)) {}

Result<std::vector<std::string>> TpuResolver::WorkersByService() const {
  GoogleApi api(options_.identity, options_.endpoint, Clock::now() + options_.timeout);
  std::string project = options_.project;
  std::string zone = options_.zone;
  if (project.empty()) {
    MUSTER_TRY_ASSIGN(project, api.Metadata("project/project-id"));
  }
  if (zone.empty()) {
    // "projects/1234/zones/us-central1-b"
    MUSTER_TRY_ASSIGN(zone, api.Metadata("instance/zone"));
    zone = LastSegment(zone);
  }
  const std::string path =
      fmt::format("/v1/projects/{}/locations/{}/nodes/{}", PercentEncode(project),
                  PercentEncode(zone), PercentEncode(options_.tpu));
  MUSTER_TRY_ASSIGN(const json node, api.Get(path));
  const std::string state = TextAt(node, "/state");
  if (state != "READY") {
    return FailedPrecondition("TPU \"{}\" is not yet ready; state: \"{}\"", options_.tpu, state);
  }
  const json* endpoints = ListAt(node, "/networkEndpoints");
  // Old nodes have their one address in the node itself.
  const json own = json::array({node});
  std::vector<std::string> workers;
  for (const json& endpoint : endpoints != nullptr ? *endpoints : own) {
    const std::string ip = TextAt(endpoint, "/ipAddress");
    const std::string port = ip.empty() ? "" : PortOf(endpoint);
    if (port.empty()) {
      return Unavailable("GET {}{}: an endpoint without address or port", options_.endpoint, path);
    }
    workers.push_back(JoinHostPort(ip, port));
  }
  return workers;
}

Result<std::vector<std::string>> TpuResolver::Workers() const {
  constexpr std::string_view kScheme = "grpc://";
  if (!options_.tpu.starts_with(kScheme)) return WorkersByService();
  std::vector<std::string> workers;
  std::string_view rest = options_.tpu;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    std::string_view worker = rest.substr(0, comma);
    if (worker.starts_with(kScheme)) worker.remove_prefix(kScheme.size());
    const bool has_port = worker.rfind(':') != std::string_view::npos && !worker.ends_with(']');
    const std::string address = has_port ? std::string(worker) : fmt::format("{}:8470", worker);
    const Result<HostPort> checked = ParseHostPort(address);
    if (!checked.ok()) return Annotate(checked.status(), "TPU \"" + options_.tpu + "\"");
    workers.push_back(address);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return workers;
}

Result<ClusterSpec> TpuResolver::Cluster() {
  if (IsLocal()) return ClusterSpec();
  MUSTER_TRY_ASSIGN(std::vector<std::string> workers, Workers());
  ClusterSpec::DenseJobs jobs = {{options_.job_name, std::move(workers)}};
  if (!options_.coordinator_name.empty()) {
    jobs[options_.coordinator_name] = {options_.coordinator_address};
  }
  return ClusterSpec::Dense(jobs);
}

Result<std::string> TpuResolver::Master(const ClusterTask& choice) {
  if (IsLocal()) return std::string();
  return ClusterResolver::Master(choice);
}

Result<std::vector<std::string>> TpuResolver::ListDevicesWithRetries() {
  for (int attempt = 0;; ++attempt) {
    MUSTER_TRY_ASSIGN(const std::string master, Master());
    Result<std::vector<std::string>> names = ListDevices(master);
    if (names.status().code() != StatusCode::kDeadlineExceeded) return names;
    if (attempt >= options_.retries) {
      return FailedPrecondition(
          "Failed to connect to master {} in {} ({}); the TPU may not be ready yet, or the "
          "address is wrong",
          master, Counted(attempt + 1, "attempt"), Message(names.status()));
    }
  }
}

Result<AcceleratorCounts> TpuResolver::NumAccelerators(const ClusterTask&) {
  MUSTER_TRY_ASSIGN(const std::vector<std::string> names, ListDevicesWithRetries());
  int cores = 0;
  std::map<std::pair<std::string, int>, int> cores_of;  // by job and task, that is by host
  for (const std::string& name : names) {
    MUSTER_TRY_ASSIGN(const DeviceName device, DeviceName::Parse(name));
    if (device.type != "TPU") continue;
    ++cores;
    ++cores_of[{device.job.value_or(""), device.task.value_or(0)}];
  }
  if (IsLocal() || cores == 0) return AcceleratorCounts{{"TPU", cores}};
  const auto& [first_host, per_host] = *cores_of.begin();
  for (const auto& [host, count] : cores_of) {
    if (count != per_host) {
      return FailedPrecondition(
          "the hosts have different numbers of TPU cores: {} on {}:{}, {} on "
          "{}:{}",
          per_host, first_host.first, first_host.second, count, host.first, host.second);
    }
  }
  return AcceleratorCounts{{"TPU", per_host}};
}

}  // namespace muster::cluster
