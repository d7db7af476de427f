#include "cli/program.h"

#include <filesystem>

#include <unistd.h>

#include "common/base/utf8.h"
#include "common/config/job_yaml/job_yaml.h"
#include "common/config/job_yaml/validate_job.h"
#include "common/process/executable.h"

namespace muster::cli {
namespace fs = std::filesystem;

namespace {

// What has set this field of a program's job.
std::string ProgramFlag(const std::string& path) {
  if (path == "name") return "--name";
  if (path == "program.memory_bytes") return "--memory";
  if (path == "program.max_restarts") return "--max-restarts";
  if (path == "program.restart") return "--restart-policy";
  return path;
}

}  // namespace

Status CheckRunnable(const std::string& path, bool scripts) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    const bool bare = path.find('/') == std::string::npos;
    return InvalidArgument(
        "there is no file {}{}", path,
        bare ? ": give the path of the program, it is not looked for in PATH" : "");
  }
  if (fs::is_directory(status)) return InvalidArgument("{} is a folder, no program", path);
  if (!fs::is_regular_file(status)) return InvalidArgument("{} is no regular file", path);
  const Result<process::Executable> looked = process::LookAtExecutable(path);
  if (looked.status().code() == StatusCode::kPermissionDenied) {
    return InvalidArgument("{}: it is sent, so whoever submits it must be able to read it",
                           Message(looked.status()));
  }
  MUSTER_TRY_ASSIGN(const process::Executable found, looked);
  using Kind = process::Executable::Kind;
  if (found.kind == Kind::kScript && !scripts) {
    return InvalidArgument(
        "{} is a script, and --strategy parameter_server runs one compiled program in every role: "
        "build a C++ program with muster::init(argc, argv) as the first line of main(), or launch "
        "the script (--strategy none)",
        path);
  }
  const bool script = found.kind == Kind::kScript;
  if (!script && found.kind != Kind::kProgram) {
    return InvalidArgument("{} is {}: submit a compiled program{}", path, found.Describe(),
                           scripts ? ", or a script that begins with #!" : "");
  }
  if (!script && found.machine != process::HostMachine()) {
    return InvalidArgument("{} is {}, and this host is {}: build it for the hosts of the cluster",
                           path, found.Describe(), process::HostMachine());
  }
  if (::access(path.c_str(), X_OK) != 0) {
    return InvalidArgument("{} is not executable: chmod +x {}", path, path);
  }
  return Ok();
}

v1::RestartPolicy RestartPolicyOf(const Options& options) {
  switch (options.restart_policy.value_or(Options::RestartPolicy::kNever)) {
    case Options::RestartPolicy::kOnFailure:
      return v1::RESTART_POLICY_ON_FAILURE;
    case Options::RestartPolicy::kExitCode:
      return v1::RESTART_POLICY_EXIT_CODE;
    default:
      return v1::RESTART_POLICY_NEVER;
  }
}

Result<v1::JobSpec> ProgramJob(const Options& options) {
  const std::string& path = options.program.front();
  for (const std::string& word : options.program) {
    if (FirstBadUtf8(word) != std::string::npos) {
      return InvalidArgument("\"{}\" is not UTF-8: a program's path and arguments must be",
                             ToValidUtf8(word));
    }
  }
  MUSTER_TRY(CheckRunnable(path, false));
  v1::JobSpec spec;
  spec.set_name(options.name.empty() ? config::NameFromFile(path) : options.name);
  v1::StrategySpec& strategy = *spec.mutable_strategy();
  strategy.set_kind(v1::STRATEGY_KIND_PARAMETER_SERVER);
  strategy.set_workers(options.job_workers.least);
  strategy.set_max_workers(options.job_workers.most);
  v1::ProgramSpec& program = *spec.mutable_program();
  program.set_name(fs::path(path).filename().string());
  program.set_sha256(kNoSha256);
  program.mutable_arguments()->Assign(options.program.begin() + 1, options.program.end());
  program.set_restart(RestartPolicyOf(options));
  program.set_max_restarts(options.max_restarts);
  program.set_closures_per_worker(options.closures_per_worker);
  program.set_parameter_servers(options.job_servers);
  program.set_memory_bytes(options.memory_bytes);
  program.set_evaluator(options.evaluator);
  for (const config::Problem& problem : config::ValidateJob(spec)) {
    return InvalidArgument("{}: {}", ProgramFlag(problem.path), problem.message);
  }
  return spec;
}

}  // namespace muster::cli
