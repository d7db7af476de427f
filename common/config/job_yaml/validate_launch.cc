#include "common/config/job_yaml/validate_launch.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/config/job_yaml/limits.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::config {
namespace {

// Stays below the folder that it is put into.
bool StaysInside(const std::string& path) {
  const std::filesystem::path parts(path);
  if (path.empty() || path.back() == '/' || parts.is_absolute()) return false;
  return std::none_of(parts.begin(), parts.end(),
                      [](const auto& part) { return part == ".." || part == "."; });
}

}  // namespace

void ValidateLaunch(const v1::JobSpec& spec, Problems& problems) {
  const v1::LaunchSpec& launch = spec.launch();
  const v1::StrategySpec& strategy = spec.strategy();
  const auto report = [&problems](std::string path, std::string message) {
    problems.push_back({std::move(path), std::move(message)});
  };
  v1::JobSpec rest = spec;
  rest.clear_name();
  rest.clear_strategy();
  rest.clear_launch();
  if (rest.ByteSizeLong() != 0) {
    report("launch", "a command brings its own model, data and steps: remove the other fields");
  }
  v1::StrategySpec more = strategy;
  more.clear_kind();
  more.clear_workers();
  more.clear_max_workers();
  if (more.ByteSizeLong() != 0) {
    report("strategy", "of a launched command only kind, workers and max_workers are set");
  }
  if (strategy.kind() != v1::STRATEGY_KIND_UNSPECIFIED &&
      strategy.kind() != v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED) {
    report("strategy.kind", "a launched command has multi_worker_mirrored, or none");
  }
  if (strategy.workers() > kMostWorkers || strategy.max_workers() > kMostWorkers) {
    report("strategy.workers", fmt::format("at most {}; given {}", kMostWorkers,
                                           std::max(strategy.workers(), strategy.max_workers())));
  }
  if (strategy.max_workers() != 0 && strategy.max_workers() < strategy.workers()) {
    report("strategy.max_workers", fmt::format("must not be below workers, {}; given {}",
                                               strategy.workers(), strategy.max_workers()));
  }
  if (launch.processes_per_worker() > kMostProcessesPerWorker) {
    report("launch.processes_per_worker",
           fmt::format("at most {}; given {}", kMostProcessesPerWorker,
                       launch.processes_per_worker()));
  }
  if (launch.max_restarts() != 0 && launch.restart() != v1::RESTART_POLICY_ON_FAILURE &&
      launch.restart() != v1::RESTART_POLICY_EXIT_CODE) {
    report("launch.max_restarts", "belongs to restart: on_failure or exit_code");
  }
  if (launch.command().empty() || launch.command().find('/') != std::string::npos) {
    report("launch.command",
           fmt::format("a name without '/', of a file that is sent or in PATH; given \"{}\"",
                       launch.command()));
  }
  if (launch.files_size() > kMostLaunchFiles) {
    report("launch.files",
           fmt::format("at most {}; given {}", kMostLaunchFiles, launch.files_size()));
  }
  std::set<std::string> paths{launch.sha256().empty() ? "" : launch.command()};
  for (const v1::LaunchFile& file : launch.files()) {
    if (!StaysInside(file.path())) {
      report("launch.files",
             fmt::format("\"{}\" must be a relative path without \".\" and \"..\"", file.path()));
    } else if (!paths.insert(file.path()).second) {
      report("launch.files",
             fmt::format("two files would be {} in the working folder", file.path()));
    }
    if (file.sha256().empty()) report("launch.files", file.path() + ": its SHA-256 is required");
  }
  std::size_t bytes = 0;
  for (const std::string& argument : launch.arguments()) bytes += argument.size() + 1;
  if (bytes > kMostArgumentBytes) {
    report("launch.arguments", fmt::format("{} bytes; at most {}", bytes, kMostArgumentBytes));
  }
}

}  // namespace muster::config
