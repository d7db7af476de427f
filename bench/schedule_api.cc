#include "bench/schedule_api.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "common/process/child.h"

namespace muster::bench {
namespace {

constexpr const char* kProgram = "muster-bench-closures";

}  // namespace

Result<std::unique_ptr<ScheduleApi>> ScheduleApi::Start() {
  for (const char* program : {kProgram, "muster", "muster-coordinator"}) {
    std::error_code none;
    if (!std::filesystem::exists(process::SiblingProgram(program), none)) {
      return std::unique_ptr<ScheduleApi>();
    }
  }
  MUSTER_TRY_ASSIGN(auto cluster, Cluster::Start(/*ps=*/1, /*workers=*/2));
  return std::unique_ptr<ScheduleApi>(new ScheduleApi(std::move(cluster)));
}

Status ScheduleApi::Measure(int round, int closures) {
  const std::string figures = cluster_->folder() + "/closures-" + std::to_string(round);
  MUSTER_TRY(cluster_
                 ->Muster({"submit", "--name", "bench-" + std::to_string(round), "--strategy",
                           "parameter_server", "--wait", "--", process::SiblingProgram(kProgram),
                           std::to_string(closures), figures})
                 .status());
  double rate = 0;
  double latency = 0;
  if (!(std::ifstream(figures) >> rate >> latency)) {
    return Internal("{} has ended well and left no figures in {}", kProgram, figures);
  }
  rates_.push_back(rate);
  latencies_.push_back(latency);
  return Ok();
}

}  // namespace muster::bench
