#include "cli/launch.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "cli/program.h"
#include "cli/upload.h"
#include "common/base/utf8.h"
#include "common/config/job_yaml/job_yaml.h"
#include "common/config/job_yaml/validate_job.h"
#include "common/process/executable.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

bool IsFile(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// It names a file here: one with a '/', or one of that name in this folder.
bool IsSent(const Options& options) {
  const std::string& command = options.program.front();
  return command.find('/') != std::string::npos || IsFile(command);
}

bool GoesUp(const fs::path& path) {
  return std::any_of(path.begin(), path.end(), [](const auto& part) { return part == ".."; });
}

struct Sent {
  std::string here;
  // In the working folder.
  std::string there;
};

// A file, or all files below a folder, by name. A relative path keeps its folders; of others the
// last name is kept, and what is below it.
std::vector<Sent> FilesAt(const std::string& sent) {
  const fs::path path = fs::path(sent).lexically_normal();
  const fs::path named = path.has_filename() ? path : path.parent_path();
  const bool keeps = named.is_relative() && !GoesUp(named);
  const fs::path there = keeps ? named : named.filename();
  std::error_code error;
  if (!fs::is_directory(named, error)) return {{sent, there.string()}};
  std::vector<Sent> files;
  for (fs::recursive_directory_iterator at(named, error), end; !error && at != end;
       at.increment(error)) {
    if (!fs::is_regular_file(at->path(), error)) continue;
    const fs::path below = there / at->path().lexically_relative(named);
    files.push_back({at->path().string(), below.lexically_normal().string()});
  }
  std::sort(files.begin(), files.end(),
            [](const Sent& a, const Sent& b) { return a.there < b.there; });
  return files;
}

// What is sent beside the command, in a fixed order.
std::vector<Sent> FilesOf(const Options& options) {
  std::vector<Sent> files;
  if (!IsSent(options) && options.program.size() > 1) {
    const std::string& script = options.program[1];
    const fs::path path(script);
    // It will lie under the very path that the command is given.
    if (!script.starts_with('-') && path.is_relative() && !GoesUp(path) && IsFile(script)) {
      files.push_back({script, path.lexically_normal().string()});
    }
  }
  for (const std::string& sent : options.send) {
    for (Sent& file : FilesAt(sent)) {
      const bool known = std::any_of(files.begin(), files.end(), [&](const Sent& one) {
        std::error_code none;
        return one.there == file.there && fs::equivalent(one.here, file.here, none);
      });
      if (!known) files.push_back(std::move(file));
    }
  }
  return files;
}

Status CheckFiles(const Options& options, const std::vector<Sent>& files) {
  for (const std::string& sent : options.send) {
    std::error_code error;
    if (fs::is_directory(sent, error) && FilesAt(sent).empty()) {
      return InvalidArgument("--send {}: no file is in this folder, or it cannot be read", sent);
    }
  }
  for (const Sent& file : files) {
    if (!IsFile(file.here)) return InvalidArgument("--send {}: there is no such file", file.here);
    if (FirstBadUtf8(file.there) != std::string::npos) {
      return InvalidArgument("--send {}: not UTF-8", ToValidUtf8(file.there));
    }
  }
  return Ok();
}

}  // namespace

bool IsLaunch(const Options& options) {
  if (options.program.empty()) return false;
  if (!options.strategy.empty()) return options.strategy != "parameter_server";
  const std::string& command = options.program.front();
  if (!IsSent(options)) return true;
  const Result<process::Executable> found = process::LookAtExecutable(command);
  return found.ok() && found->kind == process::Executable::Kind::kScript;
}

bool IsElastic(const Options& options) {
  return options.strategy == "multi_worker_mirrored" && options.job_workers.most > 0;
}

Result<v1::JobSpec> LaunchJob(const Options& options) {
  const std::string& command = options.program.front();
  for (const std::string& word : options.program) {
    if (FirstBadUtf8(word) != std::string::npos) {
      return InvalidArgument("\"{}\" is not UTF-8: a command and its arguments must be",
                             ToValidUtf8(word));
    }
  }
  const bool sent = IsSent(options);
  if (sent) MUSTER_TRY(CheckRunnable(command, true));
  const std::vector<Sent> files = FilesOf(options);
  MUSTER_TRY(CheckFiles(options, files));
  v1::JobSpec spec;
  const bool script = !sent && !files.empty() && options.program.size() > 1 &&
                      files.front().here == options.program[1];
  spec.set_name(!options.name.empty()
                    ? options.name
                    : config::NameFromFile(script ? options.program[1] : command));
  v1::StrategySpec& strategy = *spec.mutable_strategy();
  if (options.strategy == "multi_worker_mirrored") {
    strategy.set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
  }
  strategy.set_workers(options.job_workers.least);
  strategy.set_max_workers(options.job_workers.most);
  v1::LaunchSpec& launch = *spec.mutable_launch();
  launch.set_command(fs::path(command).filename().string());
  if (sent) launch.set_sha256(kNoSha256);
  launch.mutable_arguments()->Assign(options.program.begin() + 1, options.program.end());
  for (const Sent& file : files) {
    v1::LaunchFile& one = *launch.add_files();
    one.set_path(file.there);
    one.set_sha256(kNoSha256);
  }
  launch.set_elastic(IsElastic(options));
  const bool replaces = launch.elastic() && !options.restart_policy.has_value();
  launch.set_restart(replaces ? v1::RESTART_POLICY_ON_FAILURE : RestartPolicyOf(options));
  launch.set_max_restarts(options.max_restarts);
  launch.set_processes_per_worker(options.processes_per_worker);
  launch.set_grace_ms(static_cast<std::uint32_t>(options.end_grace.count()));
  launch.mutable_environment()->insert(options.job_environment.begin(),
                                       options.job_environment.end());
  for (const config::Problem& problem : config::ValidateJob(spec)) {
    const bool name = problem.path == "name";
    return InvalidArgument("{}: {}", name ? "--name" : problem.path, problem.message);
  }
  return spec;
}

Status UploadLaunch(const Terminal& terminal, JobApi& api, const Options& options,
                    v1::JobSpec& spec) {
  v1::LaunchSpec& launch = *spec.mutable_launch();
  if (IsSent(options)) {
    MUSTER_TRY_ASSIGN(const std::string sha256,
                      UploadFile(terminal, api, "the command", options.program.front()));
    launch.set_sha256(sha256);
  }
  const std::vector<Sent> files = FilesOf(options);
  for (std::size_t i = 0; i < files.size(); ++i) {
    MUSTER_TRY_ASSIGN(const std::string sha256, UploadFile(terminal, api, "--send", files[i].here));
    launch.mutable_files(static_cast<int>(i))->set_sha256(sha256);
  }
  return Ok();
}

}  // namespace muster::cli
