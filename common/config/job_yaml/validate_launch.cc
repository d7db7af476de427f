#include "common/config/job_yaml/validate_launch.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/job_limits.h"
#include "common/base/tpu_mesh.h"
#include "common/base/words.h"
#include "common/config/job_yaml/validate_strategy.h"
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

// Why it may not be set for the processes; empty: it may.
std::string WrongVariable(const std::string& name, const std::string& value) {
  if (name.empty() || name.find_first_of("=\n") != std::string::npos ||
      name.find('\0') != std::string::npos) {
    return fmt::format("\"{}\" is no name of a variable", name);
  }
  static const std::set<std::string> kOwn{"TF_CONFIG",       "RANK",        "WORLD_SIZE",
                                          "LOCAL_RANK",      "MASTER_ADDR", "MASTER_PORT",
                                          "LOCAL_WORLD_SIZE"};
  if (name == kTpuTopologyVariable) {
    const auto mesh = ParseTpuMesh(value);
    return mesh.ok() ? "" : fmt::format("{}: {}", name, Message(mesh.status()));
  }
  if (name.starts_with("MUSTER_") || kOwn.contains(name)) {
    return fmt::format("{} is the launcher's to set", name);
  }
  return "";
}

// Whether so many processes can be told of each other (job_limits.h).
bool CanBeTold(std::uint64_t workers, std::uint64_t each) {
  return job_limits::CanBeTold(workers * each * job_limits::kUsualAddressBytes, each);
}

// Why they cannot, and how many can; empty: they can. Both numbers are within their own limits.
std::string TooManyToTell(std::uint64_t workers, std::uint64_t each) {
  if (CanBeTold(workers, each)) return "";
  std::uint64_t fewer_workers = workers - 1, fewer_each = each - 1;
  while (!CanBeTold(fewer_workers, each)) --fewer_workers;
  while (!CanBeTold(workers, fewer_each)) --fewer_each;
  std::vector<std::string> ways;
  if (fewer_workers > 0) {
    ways.push_back(fmt::format("{} workers with {} each", fewer_workers, each));
  }
  if (fewer_each > 0) ways.push_back(fmt::format("{} on each of {}", fewer_each, workers));
  return fmt::format(
      "{} on each of {} are more than can be told of each other: each has the addresses of all in "
      "TF_CONFIG, {} KiB for a process and {} MiB for a worker; at most {}",
      Counted(each, "process"), Counted(workers, "worker"), job_limits::kMostAddressBytes >> 10,
      job_limits::kMostStartBytes >> 20, fmt::join(ways, ", or "));
}

}  // namespace

// Arguments and variables go into one block of memory of each process, so their bytes are counted
// together.
void ValidateLaunch(const v1::JobSpec& spec, Problems& problems) {
  const v1::LaunchSpec& launch = spec.launch();
  const v1::StrategySpec& strategy = spec.strategy();
  const auto report = [&problems](std::string path, std::string message) {
    problems.push_back({std::move(path), std::move(message)});
  };
  std::size_t bytes = 0;
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
  (void)ValidateWorkers(strategy, job_limits::kMostWorkers, problems);
  if (launch.processes_per_worker() > job_limits::kMostProcessesPerWorker) {
    report("launch.processes_per_worker",
           fmt::format("at most {}; given {}", job_limits::kMostProcessesPerWorker,
                       launch.processes_per_worker()));
  } else if (!launch.elastic()) {
    // Elastic ones are few enough.
    const std::uint32_t workers = std::max({1U, strategy.workers(), strategy.max_workers()});
    const std::uint32_t each = std::max(1U, launch.processes_per_worker());
    const std::string wrong =
        workers > job_limits::kMostWorkers ? "" : TooManyToTell(workers, each);
    if (!wrong.empty()) {
      const bool most = strategy.max_workers() > strategy.workers();
      report(each > 1 ? "launch.processes_per_worker"
             : most   ? "strategy.max_workers"
                      : "strategy.workers",
             wrong);
    }
  }
  if (launch.max_restarts() != 0 && launch.restart() != v1::RESTART_POLICY_ON_FAILURE &&
      launch.restart() != v1::RESTART_POLICY_EXIT_CODE) {
    report("launch.max_restarts", "belongs to restart: on_failure or exit_code");
  }
  if (launch.elastic() && (strategy.kind() != v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED ||
                           launch.processes_per_worker() > 1)) {
    report("launch.elastic",
           "processes that come and go are a program of multi_worker_mirrored, one on each worker");
  }
  if (launch.elastic() && strategy.max_workers() == 0) {
    report("strategy.max_workers", "an elastic job says how many processes it has at most");
  }
  if (launch.elastic() && strategy.max_workers() > job_limits::kMostElasticWorkers) {
    report("strategy.max_workers",
           fmt::format("an elastic job has at most {}; given {}", job_limits::kMostElasticWorkers,
                       strategy.max_workers()));
  }
  if (launch.grace_ms() > job_limits::kMostGraceMs) {
    report("launch.grace_ms", fmt::format("at most {} ms (an hour); given {}",
                                          job_limits::kMostGraceMs, launch.grace_ms()));
  }
  for (const auto& [name, value] : launch.environment()) {
    if (const std::string wrong = WrongVariable(name, value); !wrong.empty()) {
      report("launch.environment", wrong);
    }
    bytes += name.size() + value.size() + 2;
  }
  if (launch.command().empty() || launch.command().find('/') != std::string::npos) {
    report("launch.command",
           fmt::format("a name without '/', of a file that is sent or in PATH; given \"{}\"",
                       launch.command()));
  }
  if (launch.files_size() > job_limits::kMostLaunchFiles) {
    report("launch.files",
           fmt::format("at most {}; given {}", job_limits::kMostLaunchFiles, launch.files_size()));
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
  for (const std::string& argument : launch.arguments()) bytes += argument.size() + 1;
  if (bytes > job_limits::kMostArgumentBytes) {
    report("launch.arguments", fmt::format("{} bytes with the environment; at most {}", bytes,
                                           job_limits::kMostArgumentBytes));
  }
}

}  // namespace muster::config
