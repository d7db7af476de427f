#include "common/cluster/tf_config.h"

#include <map>

#include <nlohmann/json.hpp>

#include "common/cluster/json_text.h"
#include "common/cluster/roles.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

constexpr const char* kName = "TF_CONFIG";

Result<std::optional<std::string>> OptionalText(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::optional<std::string>();
  if (!found->is_string()) {
    return InvalidArgument("{}: {} is {}; text is wanted", kName, key, Describe(*found));
  }
  return std::optional<std::string>(found->get<std::string>());
}

Status ReadTask(const json& root, TfConfig& config) {
  const auto task = root.find("task");
  if (task == root.end() || task->is_null()) return Ok();
  if (!task->is_object()) {
    return InvalidArgument("{}: task is {}; an object with type and index is wanted", kName,
                           Describe(*task));
  }
  if (const auto type = task->find("type"); type != task->end() && !type->is_null()) {
    if (type->is_string()) {
      config.task_type = type->get<std::string>();
    } else if (type->is_number()) {
      config.task_type = type->dump();
    } else {
      return InvalidArgument("{}: task.type is {}; the name of a job is wanted", kName,
                             Describe(*type));
    }
  }
  if (const auto index = task->find("index"); index != task->end() && !index->is_null()) {
    MUSTER_TRY_ASSIGN(config.task_index, ToIndex(*index, fmt::format("{}: task.index", kName)));
  }
  return Ok();
}

// In Kubeflow's sparse form a ps is told of itself alone, as a list of one whatever its index.
Result<ClusterSpec> PlaceLonePs(ClusterSpec spec, const TfConfig& config) {
  if (config.task_type != "ps" || config.task_index.value_or(0) == 0) return spec;
  if (spec.CountTasks("ps") != 1 || !spec.jobs().at("ps").contains(0)) return spec;
  ClusterSpec::Jobs jobs = spec.jobs();
  jobs["ps"] = {{*config.task_index, spec.jobs().at("ps").at(0)}};
  return ClusterSpec::Create(std::move(jobs));
}

Status CheckAddresses(const ClusterSpec& spec) {
  std::map<std::string, TaskId> taken;
  for (const auto& [job, tasks] : spec.jobs()) {
    for (const auto& [index, address] : tasks) {
      const TaskId task{job, index};
      const Result<HostPort> parsed = ParseHostPort(address);
      if (!parsed.ok()) {
        return Annotate(parsed.status(), fmt::format("{}: address of {}", kName, task.ToString()));
      }
      const auto [at, fresh] = taken.emplace(address, task);
      if (!fresh) {
        return InvalidArgument("{}: {} and {} have the same address {}", kName,
                               at->second.ToString(), task.ToString(), address);
      }
    }
  }
  return Ok();
}

}  // namespace

Result<TfConfig> ParseTfConfig(std::string_view text) {
  MUSTER_TRY_ASSIGN(const json root, ParseJson(text, kName));
  if (!root.is_object()) {
    return InvalidArgument("{}: {} is given; an object with cluster and task is wanted", kName,
                           Describe(root));
  }
  TfConfig config;
  MUSTER_TRY(ReadTask(root, config));
  MUSTER_TRY_ASSIGN(config.rpc_layer, OptionalText(root, "rpc_layer"));
  MUSTER_TRY_ASSIGN(config.session_master, OptionalText(root, "session_master"));
  const bool dense = root.contains("cluster");
  if (dense && root.contains("sparseCluster")) {
    return InvalidArgument("{}: both cluster and sparseCluster are given; one is wanted", kName);
  }
  const char* key = dense ? "cluster" : "sparseCluster";
  if (!root.contains(key) || root[key].is_null()) return config;
  const std::string where = fmt::format("{}: {}", kName, key);
  MUSTER_TRY_ASSIGN(config.cluster, ClusterSpec::FromJson(root[key], where));
  if (!dense) {
    MUSTER_TRY_ASSIGN(config.cluster, PlaceLonePs(std::move(config.cluster), config));
  }
  return config;
}

Result<TaskConfig> FromTfConfig(std::string_view text, const std::optional<TaskId>& told) {
  MUSTER_TRY_ASSIGN(TfConfig config, ParseTfConfig(text));
  if (told && !config.task_type && !config.task_index) {
    config.task_type = told->type;
    config.task_index = told->index;
  }
  if (!config.cluster) {
    return InvalidArgument(
        "{}: no cluster; \"cluster\": {{\"worker\": [\"host:port\"], ..}} is "
        "wanted",
        kName);
  }
  if (!config.task_type || config.task_type->empty()) {
    return InvalidArgument("{}: no task.type; which job this process belongs to is wanted", kName);
  }
  if (!config.task_index) {
    return InvalidArgument("{}: no task.index; which {} this process is, from 0, is wanted", kName,
                           *config.task_type);
  }
  const TaskId task{*config.task_type, *config.task_index};
  if (const Status roles = ValidateRoles(config.cluster, task); !roles.ok()) {
    return Annotate(roles, kName);
  }
  MUSTER_TRY(CheckAddresses(config.cluster));

  TaskConfig result{
      .cluster = std::move(config.cluster), .task = task, .address = {}, .coordinator = {}};
  if (result.cluster.HasJob(task.type)) {
    MUSTER_TRY_ASSIGN(result.address, result.cluster.TaskAddress(task.type, task.index));
  }
  if (result.cluster.CountTasks("chief") == 1) {
    result.coordinator = result.cluster.jobs().at("chief").begin()->second;
  }
  return result;
}

}  // namespace muster::cluster
