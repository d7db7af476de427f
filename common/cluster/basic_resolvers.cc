#include "common/cluster/basic_resolvers.h"

#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/cluster/json_text.h"

namespace muster::cluster {
namespace {

bool HasAtMostOneTask(const ClusterSpec& spec) {
  const ClusterSpec::Jobs& jobs = spec.jobs();
  return jobs.empty() || (jobs.size() == 1 && jobs.begin()->second.size() == 1);
}

// The lone task of a sparse job, {"3": ..}: one of several that this process is not told of.
bool HasOthers(const ClusterSpec& spec) {
  return !spec.jobs().empty() && !IsDense(spec.jobs().begin()->second);
}

}  // namespace

// --- TF_CONFIG -----------------------------------------------------------------------------------

TfConfigResolver::TfConfigResolver(Environment environment)
    : TfConfigResolver(std::move(environment), Options()) {}

TfConfigResolver::TfConfigResolver(Environment environment, Options options)
    : ClusterResolver(std::move(options.task), options.devices),
      environment_(std::move(environment)),
      environment_name_(std::move(options.environment_name)) {}

Result<TfConfig> TfConfigResolver::Read() const {
  const std::optional<std::string> text = environment_("TF_CONFIG");
  if (!text || text->empty()) return TfConfig();
  return ParseTfConfig(*text);
}

Result<ClusterSpec> TfConfigResolver::Cluster() {
  MUSTER_TRY_ASSIGN(TfConfig config, Read());
  return std::move(config.cluster);
}

Result<std::optional<std::string>> TfConfigResolver::TaskType() {
  if (own_.task_type) return own_.task_type;
  MUSTER_TRY_ASSIGN(TfConfig config, Read());
  return std::move(config.task_type);
}

Result<std::optional<int>> TfConfigResolver::TaskId() {
  if (own_.task_id) return own_.task_id;
  MUSTER_TRY_ASSIGN(const TfConfig config, Read());
  return config.task_index;
}

Result<std::optional<std::string>> TfConfigResolver::RpcLayer() {
  if (own_.rpc_layer) return own_.rpc_layer;
  MUSTER_TRY_ASSIGN(TfConfig config, Read());
  return std::move(config.rpc_layer);
}

Result<std::string> TfConfigResolver::Master(const ClusterTask& choice) {
  MUSTER_TRY_ASSIGN(const TfConfig config, Read());
  if (config.session_master) return *config.session_master;
  const std::optional<std::string>& own_type = own_.task_type ? own_.task_type : config.task_type;
  const std::optional<int>& own_id = own_.task_id ? own_.task_id : config.task_index;
  const std::optional<std::string>& own_rpc = own_.rpc_layer ? own_.rpc_layer : config.rpc_layer;
  const std::optional<std::string>& type = choice.task_type ? choice.task_type : own_type;
  const std::optional<int>& id = choice.task_id ? choice.task_id : own_id;
  if (HasAtMostOneTask(config.cluster) && !(HasOthers(config.cluster) && type && id)) {
    return std::string();
  }
  if (!type || !id) {
    return FailedPrecondition(
        "TF_CONFIG has a cluster but no task.{}, and none was given: whose address is wanted?",
        type ? "index" : "type");
  }
  MUSTER_TRY_ASSIGN(const std::string address, config.cluster.TaskAddress(*type, *id));
  return MasterUrl(address, (choice.rpc_layer ? choice.rpc_layer : own_rpc).value_or(""));
}

// --- Simple --------------------------------------------------------------------------------------

SimpleResolver::SimpleResolver(ClusterSpec spec) : SimpleResolver(std::move(spec), Options()) {}

SimpleResolver::SimpleResolver(ClusterSpec spec, Options options)
    : ClusterResolver(options.task), spec_(std::move(spec)), options_(std::move(options)) {}

Result<std::string> SimpleResolver::Master(const ClusterTask& choice) {
  const std::string rpc_layer = (choice.rpc_layer ? choice.rpc_layer : own_.rpc_layer).value_or("");
  if (!choice.task_type || !choice.task_id) return MasterUrl(options_.master, rpc_layer);
  MUSTER_TRY_ASSIGN(const std::string address,
                    spec_.TaskAddress(*choice.task_type, *choice.task_id));
  return MasterUrl(address, rpc_layer);
}

// --- Union ---------------------------------------------------------------------------------------

Result<std::unique_ptr<UnionResolver>> UnionResolver::Create(
    std::vector<std::unique_ptr<ClusterResolver>> resolvers, ClusterTask own) {
  if (resolvers.empty()) {
    return InvalidArgument("a union of no resolvers; at least one is wanted");
  }
  if (std::find(resolvers.begin(), resolvers.end(), nullptr) != resolvers.end()) {
    return InvalidArgument("a union with a null resolver");
  }
  return std::unique_ptr<UnionResolver>(new UnionResolver(std::move(resolvers), std::move(own)));
}

Result<ClusterSpec> UnionResolver::Cluster() {
  std::vector<ClusterSpec> specs;
  std::set<std::string> sparse;
  for (const auto& resolver : resolvers_) {
    MUSTER_TRY_ASSIGN(ClusterSpec spec, resolver->Cluster());
    for (const auto& [job, tasks] : spec.jobs()) {
      if (!IsDense(tasks)) sparse.insert(job);
    }
    specs.push_back(std::move(spec));
  }
  ClusterSpec::Jobs merged;
  for (const ClusterSpec& spec : specs) {
    for (const auto& [job, tasks] : spec.jobs()) {
      ClusterSpec::Tasks& into = merged[job];
      const int offset = sparse.contains(job) ? 0 : static_cast<int>(into.size());
      for (const auto& [index, address] : tasks) {
        const auto [at, fresh] = into.emplace(index + offset, address);
        if (!fresh) {
          return AlreadyExists("two clusters of a union have a task {}:{}: {} and {}", job, index,
                               at->second, address);
        }
      }
    }
  }
  return ClusterSpec::Create(std::move(merged));
}

Result<std::string> UnionResolver::Master(const ClusterTask& choice) {
  if (choice.task_type && choice.task_id) return ClusterResolver::Master(choice);
  return resolvers_[0]->Master({.rpc_layer = choice.rpc_layer});
}

Result<std::optional<std::string>> UnionResolver::TaskType() {
  if (own_.task_type) return own_.task_type;
  return resolvers_[0]->TaskType();
}

Result<std::optional<int>> UnionResolver::TaskId() {
  if (own_.task_id) return own_.task_id;
  return resolvers_[0]->TaskId();
}

Result<std::optional<std::string>> UnionResolver::RpcLayer() {
  if (own_.rpc_layer) return own_.rpc_layer;
  return resolvers_[0]->RpcLayer();
}

// --- SageMaker -----------------------------------------------------------------------------------

SageMakerResolver::SageMakerResolver(Environment environment)
    : SageMakerResolver(std::move(environment), Options()) {}

SageMakerResolver::SageMakerResolver(Environment environment, Options options)
    : ClusterResolver(std::move(options.task), options.devices),
      environment_(std::move(environment)),
      port_(options.port) {}

Result<SageMakerResolver::Hosts> SageMakerResolver::Read() const {
  const std::optional<std::string> list = environment_("SM_HOSTS");
  const std::optional<std::string> current = environment_("SM_CURRENT_HOST");
  if (!list || !current) {
    return FailedPrecondition("Not a SageMaker Environment: {} is not set",
                              list ? "SM_CURRENT_HOST" : "SM_HOSTS");
  }
  Hosts hosts;
  if (list->empty()) return hosts;
  MUSTER_TRY_ASSIGN(const nlohmann::json parsed, ParseJson(*list, "SM_HOSTS"));
  if (!parsed.is_array()) {
    return InvalidArgument("SM_HOSTS: {} is given; a list of host names is wanted",
                           Describe(parsed));
  }
  for (const nlohmann::json& name : parsed) {
    if (!name.is_string()) {
      return InvalidArgument("SM_HOSTS: {} is no host name", Describe(name));
    }
    hosts.names.push_back(name.get<std::string>());
  }
  if (hosts.names.empty()) return hosts;
  std::sort(hosts.names.begin(), hosts.names.end());
  const auto own = std::find(hosts.names.begin(), hosts.names.end(), *current);
  if (own == hosts.names.end()) {
    return FailedPrecondition("SM_CURRENT_HOST is \"{}\", which is not in SM_HOSTS {}", *current,
                              *list);
  }
  hosts.own = static_cast<int>(own - hosts.names.begin());
  return hosts;
}

Result<ClusterSpec> SageMakerResolver::Cluster() {
  MUSTER_TRY(CheckPort(port_));
  MUSTER_TRY_ASSIGN(const Hosts hosts, Read());
  if (hosts.names.empty()) return ClusterSpec();
  std::vector<std::string> workers;
  for (const std::string& name : hosts.names) workers.push_back(fmt::format("{}:{}", name, port_));
  return ClusterSpec::Dense({{"worker", std::move(workers)}});
}

Result<std::string> SageMakerResolver::Master(const ClusterTask& choice) {
  MUSTER_TRY_ASSIGN(const ClusterSpec spec, Cluster());
  if (HasAtMostOneTask(spec)) return std::string();
  return ClusterResolver::Master(choice);
}

Result<std::optional<std::string>> SageMakerResolver::TaskType() {
  if (own_.task_type) return own_.task_type;
  MUSTER_TRY_ASSIGN(const Hosts hosts, Read());
  return hosts.own ? std::optional<std::string>("worker") : std::nullopt;
}

Result<std::optional<int>> SageMakerResolver::TaskId() {
  if (own_.task_id) return own_.task_id;
  MUSTER_TRY_ASSIGN(const Hosts hosts, Read());
  return hosts.own;
}

}  // namespace muster::cluster
