// Which tasks a cluster has and where each listens: job name -> task index -> address.
//
// A job is dense (indices 0..n-1, written as a list) or sparse (any indices, written as a mapping);
// both forms of the same tasks are equal. Addresses are text here: nobody connects or resolves.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/status.h"

namespace muster::v1 {
class ClusterDef;
}

namespace muster::cluster {

// Threading: a value; const calls from any thread.
class ClusterSpec {
 public:
  using Tasks = std::map<int, std::string>;  // index -> address
  using Jobs = std::map<std::string, Tasks>;
  using DenseJobs = std::map<std::string, std::vector<std::string>>;

  ClusterSpec() = default;
  static ClusterSpec Dense(const DenseJobs& jobs);
  //   kInvalidArgument: a negative index.
  static Result<ClusterSpec> Create(Jobs jobs);
  // {"worker": ["host:port", ..]} or {"worker": {"0": "host:port", ..}}. `where` begins each
  // message.
  //   kInvalidArgument: any other form.
  static Result<ClusterSpec> FromJson(const nlohmann::json& jobs, std::string_view where);
  //   kInvalidArgument: a job named twice, or an index that is too large.
  static Result<ClusterSpec> FromProto(const v1::ClusterDef& def);

  void ToProto(v1::ClusterDef& def) const;  // jobs sorted by name
  [[nodiscard]] nlohmann::json ToJson() const;
  // ClusterSpec({'ps': ['a:1'], 'worker': {3: 'b:1'}}), jobs sorted by name.
  [[nodiscard]] std::string ToString() const;

  // Whether there is any job, be it without tasks.
  explicit operator bool() const { return !jobs_.empty(); }
  bool operator==(const ClusterSpec&) const = default;

  [[nodiscard]] const Jobs& jobs() const { return jobs_; }
  [[nodiscard]] bool HasJob(const std::string& job) const { return jobs_.contains(job); }
  // 0 for a job that is not there.
  [[nodiscard]] std::size_t CountTasks(const std::string& job) const;

  // Each of these: kInvalidArgument for a job, or an index, that is not there.
  [[nodiscard]] Result<int> NumTasks(const std::string& job) const;
  [[nodiscard]] Result<std::vector<int>> TaskIndices(const std::string& job) const;
  // By index, with nothing in the holes of a sparse job.
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> JobTasks(
      const std::string& job) const;
  [[nodiscard]] Result<std::string> TaskAddress(const std::string& job, int index) const;

  // This cluster without one of its jobs.
  [[nodiscard]] ClusterSpec Without(const std::string& job) const;

 private:
  Result<const Tasks*> Find(const std::string& job) const;

  Jobs jobs_;
};

// Whether the tasks' indices leave no holes.
[[nodiscard]] bool IsDense(const ClusterSpec::Tasks& tasks);

// "host:port" or "[v6]:port", taken apart.
struct HostPort {
  std::string host;
  int port = 0;
};
//   kInvalidArgument: no host, no port, or a port outside 1..65535.
[[nodiscard]] Result<HostPort> ParseHostPort(std::string_view address);

}  // namespace muster::cluster
