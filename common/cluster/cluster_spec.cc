#include "common/cluster/cluster_spec.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/host_port.h"
#include "common/base/words.h"
#include "common/cluster/json_text.h"
#include "muster/v1/cluster_def.pb.h"

namespace muster::cluster {

bool IsDense(const ClusterSpec::Tasks& tasks) {
  return tasks.empty() || tasks.rbegin()->first == static_cast<int>(tasks.size()) - 1;
}

namespace {

using nlohmann::json;

std::string Text(const ClusterSpec::Tasks& tasks) {
  const bool dense = IsDense(tasks);
  std::vector<std::string> pieces;
  for (const auto& [index, address] : tasks) {
    pieces.push_back(dense ? Quoted(address) : fmt::format("{}: {}", index, Quoted(address)));
  }
  const std::string inner = fmt::format("{}", fmt::join(pieces, ", "));
  return dense ? "[" + inner + "]" : "{" + inner + "}";
}

Result<ClusterSpec::Tasks> TasksFromJson(const json& value, const std::string& where) {
  ClusterSpec::Tasks tasks;
  const auto add = [&](int index, const json& address, const std::string& at) {
    if (!address.is_string()) {
      return InvalidArgument("{}: {} is given, an address \"host:port\" is wanted", at,
                             Describe(address));
    }
    if (!tasks.emplace(index, address.get<std::string>()).second) {
      return InvalidArgument("{}: index {} is given twice", at, index);
    }
    return Ok();
  };
  if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      MUSTER_TRY(add(static_cast<int>(i), value[i], fmt::format("{}[{}]", where, i)));
    }
    return tasks;
  }
  if (value.is_object()) {
    for (const auto& [key, address] : value.items()) {
      const std::string at = fmt::format("{}[\"{}\"]", where, key);
      MUSTER_TRY_ASSIGN(const int index, ParseIndex(key, at));
      MUSTER_TRY(add(index, address, at));
    }
    return tasks;
  }
  return InvalidArgument(
      "{}: {} is given; a job is a list of addresses or an object from index to address", where,
      Describe(value));
}

}  // namespace

ClusterSpec ClusterSpec::Dense(const DenseJobs& jobs) {
  ClusterSpec spec;
  for (const auto& [job, addresses] : jobs) {
    Tasks& tasks = spec.jobs_[job];
    for (std::size_t i = 0; i < addresses.size(); ++i) tasks[static_cast<int>(i)] = addresses[i];
  }
  return spec;
}

Result<ClusterSpec> ClusterSpec::Create(Jobs jobs) {
  for (const auto& [job, tasks] : jobs) {
    if (!tasks.empty() && tasks.begin()->first < 0) {
      return InvalidArgument("cluster spec: {} has a task with index {}; indices begin at 0", job,
                             tasks.begin()->first);
    }
  }
  ClusterSpec spec;
  spec.jobs_ = std::move(jobs);
  return spec;
}

Result<ClusterSpec> ClusterSpec::FromJson(const json& jobs, std::string_view where) {
  if (!jobs.is_object()) {
    return InvalidArgument("{}: {} is given; an object from job name to addresses is wanted", where,
                           Describe(jobs));
  }
  Jobs parsed;
  for (const auto& [job, tasks] : jobs.items()) {
    const std::string at = fmt::format("{}.{}", where, job);
    MUSTER_TRY_ASSIGN(parsed[job], TasksFromJson(tasks, at));
  }
  return Create(std::move(parsed));
}

Result<ClusterSpec> ClusterSpec::FromProto(const v1::ClusterDef& def) {
  Jobs jobs;
  for (const v1::JobDef& job : def.jobs()) {
    Tasks tasks;
    for (const auto& [index, address] : job.tasks()) tasks[static_cast<int>(index)] = address;
    if (!jobs.emplace(job.name(), std::move(tasks)).second) {
      return InvalidArgument("cluster spec: job {} is given twice", job.name());
    }
  }
  return Create(std::move(jobs));
}

void ClusterSpec::ToProto(v1::ClusterDef& def) const {
  def.Clear();
  for (const auto& [job, tasks] : jobs_) {
    v1::JobDef* out = def.add_jobs();
    out->set_name(job);
    for (const auto& [index, address] : tasks) {
      (*out->mutable_tasks())[static_cast<std::uint32_t>(index)] = address;
    }
  }
}

json ClusterSpec::ToJson() const {
  json out = json::object();
  for (const auto& [job, tasks] : jobs_) {
    const bool dense = IsDense(tasks);
    json& list = out[job] = dense ? json::array() : json::object();
    for (const auto& [index, address] : tasks) {
      if (dense) {
        list.push_back(address);
      } else {
        list[std::to_string(index)] = address;
      }
    }
  }
  return out;
}

std::string ClusterSpec::ToString() const {
  std::vector<std::string> pieces;
  for (const auto& [job, tasks] : jobs_) pieces.push_back(Quoted(job) + ": " + Text(tasks));
  return fmt::format("ClusterSpec({{{}}})", fmt::join(pieces, ", "));
}

std::size_t ClusterSpec::CountTasks(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? 0 : found->second.size();
}

Result<const ClusterSpec::Tasks*> ClusterSpec::Find(const std::string& job) const {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) return &found->second;
  const auto name = [](const auto& entry) { return entry.first; };
  return InvalidArgument("no job \"{}\" in the cluster; it has {}", job,
                         jobs_.empty() ? "none" : Joined(jobs_, kMostNamed, name));
}

Result<int> ClusterSpec::NumTasks(const std::string& job) const {
  MUSTER_TRY_ASSIGN(const Tasks* tasks, Find(job));
  return static_cast<int>(tasks->size());
}

Result<std::vector<int>> ClusterSpec::TaskIndices(const std::string& job) const {
  MUSTER_TRY_ASSIGN(const Tasks* tasks, Find(job));
  std::vector<int> indices;
  for (const auto& [index, address] : *tasks) indices.push_back(index);
  return indices;
}

Result<std::vector<std::optional<std::string>>> ClusterSpec::JobTasks(
    const std::string& job) const {
  MUSTER_TRY_ASSIGN(const Tasks* tasks, Find(job));
  // An index comes from outside and may be two thousand millions; the answer has a slot for each.
  constexpr int kMostSlots = 1 << 20;
  if (!tasks->empty() && tasks->rbegin()->first >= kMostSlots) {
    return InvalidArgument("job {}: index {} is beyond the {} tasks that a list can have", job,
                           tasks->rbegin()->first, kMostSlots);
  }
  std::vector<std::optional<std::string>> slots;
  for (const auto& [index, address] : *tasks) {
    slots.resize(static_cast<std::size_t>(index) + 1);
    slots.back() = address;
  }
  return slots;
}

Result<std::string> ClusterSpec::TaskAddress(const std::string& job, int index) const {
  MUSTER_TRY_ASSIGN(const Tasks* tasks, Find(job));
  if (const auto found = tasks->find(index); found != tasks->end()) return found->second;
  if (IsDense(*tasks)) {
    return InvalidArgument("no task {}:{} in the cluster; {} has {}", job, index, job,
                           Counted(tasks->size(), "task"));
  }
  return InvalidArgument("no task {}:{} in the cluster; {} has {}", job, index, job, Text(*tasks));
}

ClusterSpec ClusterSpec::Without(const std::string& job) const {
  ClusterSpec spec = *this;
  spec.jobs_.erase(job);
  return spec;
}

Result<HostPort> ParseHostPort(std::string_view address) {
  const std::optional<HostAndPort> parts = SplitHostPort(address);
  if (!parts || address.find_first_of(" \t\r\n/") != std::string_view::npos) {
    // Which of its pieces is the port, nobody can tell.
    const bool bare_v6 = std::ranges::count(address, ':') > 1 &&
                         address.find_first_not_of("0123456789abcdefABCDEF:.") == address.npos;
    return InvalidArgument("\"{}\" is not host:port{}", address,
                           bare_v6 ? "; an IPv6 host stands in brackets, [fd00::7]:2222" : "");
  }
  const std::string_view digits = parts->port;
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  const bool number = end == digits.data() + digits.size() && !digits.empty();
  if (!number || error == std::errc::invalid_argument) {
    return InvalidArgument("\"{}\": \"{}\" is not a port; 1 to 65535 is allowed", address, digits);
  }
  if (error != std::errc() || port < 1 || port > 65535) {
    return InvalidArgument("\"{}\": port {} is out of range; 1 to 65535 is allowed", address,
                           digits);
  }
  return HostPort{.host = std::string(parts->host), .port = port};
}

}  // namespace muster::cluster
