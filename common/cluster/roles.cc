#include "common/cluster/roles.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <vector>

#include "common/base/suggest.h"

namespace muster::cluster {
namespace {

constexpr std::array<std::string_view, 4> kAllowed = {"chief", "worker", "ps", "evaluator"};
constexpr std::string_view kAllowedText = "chief, worker, ps and evaluator are allowed";

bool IsAllowed(std::string_view job) {
  return std::find(kAllowed.begin(), kAllowed.end(), job) != kAllowed.end();
}

std::string Hint(std::string_view job) {
  if (job == "master") return "; \"master\" is the old name of \"chief\"";
  return DidYouMean(job, std::vector<std::string>(kAllowed.begin(), kAllowed.end()));
}

Status ValidateJobs(const ClusterSpec& spec) {
  for (const auto& [job, tasks] : spec.jobs()) {
    if (!IsAllowed(job)) {
      return InvalidArgument("Disallowed task type found in cluster spec: \"{}\"; {}{}", job,
                             kAllowedText, Hint(job));
    }
  }
  for (const char* single : {"chief", "evaluator"}) {
    const std::size_t count = spec.CountTasks(single);
    if (count > 1) {
      return InvalidArgument("{} tasks of job '{}' are given; there must be at most one '{}' job",
                             count, single, single);
    }
  }
  return Ok();
}

Status ValidateType(const ClusterSpec& spec, const std::string& type) {
  if (!type.empty() && !IsAllowed(type)) {
    return InvalidArgument("Unrecognized task_type: {}; {}{}", type, kAllowedText, Hint(type));
  }
  MUSTER_TRY(ValidateJobs(spec));
  if (!type.empty() && type != "evaluator" && !spec.HasJob(type)) {
    return InvalidArgument("task_type {} not found in cluster_spec {}", type, spec.ToString());
  }
  return Ok();
}

}  // namespace

Status ValidateRoles(const ClusterSpec& spec, const TaskId& task) {
  MUSTER_TRY(ValidateType(spec, task.type));
  if (task.type.empty() || !spec.HasJob(task.type)) return Ok();
  const ClusterSpec::Tasks& tasks = spec.jobs().at(task.type);
  if (tasks.contains(task.index)) return Ok();
  if (tasks.empty()) {
    return InvalidArgument("task_id {} given, but job {} has no tasks", task.index, task.type);
  }
  const int most = tasks.rbegin()->first;
  if (task.index > most) {
    return InvalidArgument("task_id {} exceeds the maximum id of {}, which is {}", task.index,
                           task.type, most);
  }
  return InvalidArgument("task_id {} is not among the tasks of {} in {}", task.index, task.type,
                         spec.ToString());
}

Result<bool> IsChief(const ClusterSpec& spec, const TaskId& task) {
  MUSTER_TRY(ValidateRoles(spec, task));
  if (task.type == "chief" || task.type == "evaluator") return true;
  return task.type == "worker" && task.index == 0 && !spec.HasJob("chief");
}

Result<int> WorkerCount(const ClusterSpec& spec, const std::string& task_type) {
  MUSTER_TRY(ValidateType(spec, task_type));
  if (task_type == "evaluator") return static_cast<int>(spec.CountTasks("evaluator"));
  if (task_type == "chief" || task_type == "worker") {
    return static_cast<int>(spec.CountTasks("chief") + spec.CountTasks("worker"));
  }
  return InvalidArgument(
      "no worker count for task_type \"{}\"; chief, worker and evaluator have one", task_type);
}

Result<int> IdInCluster(const ClusterSpec& spec, const TaskId& task) {
  MUSTER_TRY(ValidateRoles(spec, task));
  if (task.type == "chief") return 0;
  if (task.type == "worker") {
    const ClusterSpec::Tasks& workers = spec.jobs().at("worker");
    return static_cast<int>(spec.CountTasks("chief")) +
           static_cast<int>(std::distance(workers.begin(), workers.find(task.index)));
  }
  if (task.type == "evaluator") return task.index;
  return InvalidArgument("no id in the cluster for {}; chief, worker and evaluator have one",
                         task.ToString());
}

std::optional<TaskId> CoordinationLeader(const ClusterSpec& spec) {
  for (const char* job : {"ps", "chief", "worker"}) {
    if (spec.HasJob(job)) return TaskId{job, 0};
  }
  return std::nullopt;
}

}  // namespace muster::cluster
