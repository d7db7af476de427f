#include "cli/launch.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <ostream>
#include <unordered_map>

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

struct Listing {
  std::vector<Sent> files;
  // What of a folder is not sent, and why: links to a mount that every host has, an editor's lock.
  std::vector<std::string> left_out;
};

// Empty: it is sent.
std::string WhyLeftOut(const fs::path& path, const fs::file_status& leads) {
  std::error_code error;
  const bool link = fs::is_symlink(path, error);
  if (link && !fs::exists(leads)) return "a link that leads nowhere";
  if (link && fs::is_directory(leads)) return "a link to a folder";
  if (fs::is_regular_file(leads) || fs::is_directory(leads)) return "";
  return "no file (a pipe, a socket or a device)";
}

// All files below `folder`, which lies at `there` in the working folder.
Status AddFilesBelow(const std::string& sent, const fs::path& folder, const fs::path& there,
                     Listing& list) {
  std::error_code error;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const fs::path& path = at->path();
    std::error_code unknown;
    const fs::file_status leads = fs::status(path, unknown);
    if (!fs::status_known(leads)) {
      return InvalidArgument("--send {}: {} cannot be read: {}", sent, path.string(),
                             unknown.message());
    }
    const fs::path name = there / path.filename();
    if (const std::string why = WhyLeftOut(path, leads); !why.empty()) {
      list.left_out.push_back(fmt::format("{} is {}", path.string(), why));
    } else if (fs::is_directory(leads)) {
      MUSTER_TRY(AddFilesBelow(sent, path, name, list));
    } else {
      list.files.push_back({path.string(), name.lexically_normal().string()});
    }
  }
  if (!error) return Ok();
  return InvalidArgument("--send {}: the folder {} cannot be read: {}", sent, folder.string(),
                         error.message());
}

// A file, or all files below a folder, by name. A relative path keeps its folders; of others the
// last name is kept, and what is below it.
//   kInvalidArgument: a part of the folder that cannot be read: a job would find half a folder only
//   when it runs.
Result<Listing> FilesAt(const std::string& sent) {
  const fs::path path = fs::path(sent).lexically_normal();
  const fs::path named = path.has_filename() ? path : path.parent_path();
  const bool keeps = named.is_relative() && !GoesUp(named);
  const fs::path there = keeps ? named : named.filename();
  std::error_code error;
  Listing list;
  if (!fs::is_directory(named, error)) {
    list.files.push_back({sent, there.string()});
    return list;
  }
  MUSTER_TRY(AddFilesBelow(sent, named, there, list));
  if (list.files.empty()) return InvalidArgument("--send {}: no file is in this folder", sent);
  std::ranges::sort(list.files, {}, &Sent::there);
  std::ranges::sort(list.left_out);
  return list;
}

// What is sent beside the command, in a fixed order.
Result<Listing> FilesOf(const Options& options) {
  Listing list;
  // By where they will lie: a folder may be a home with a million of them, and --send may be given
  // as often.
  std::unordered_multimap<std::string, std::string> known;
  const auto add = [&](Sent file) {
    known.emplace(file.there, file.here);
    list.files.push_back(std::move(file));
  };
  if (!IsSent(options) && options.program.size() > 1) {
    const std::string& script = options.program[1];
    const fs::path path(script);
    // It will lie under the very path that the command is given.
    if (!script.starts_with('-') && path.is_relative() && !GoesUp(path) && IsFile(script)) {
      add({script, path.lexically_normal().string()});
    }
  }
  for (const std::string& sent : options.send) {
    MUSTER_TRY_ASSIGN(Listing all, FilesAt(sent));
    std::ranges::move(all.left_out, std::back_inserter(list.left_out));
    for (Sent& file : all.files) {
      const auto [from, to] = known.equal_range(file.there);
      const bool twice = std::any_of(from, to, [&file](const auto& one) {
        std::error_code none;
        return fs::equivalent(one.second, file.here, none);
      });
      if (!twice) add(std::move(file));
    }
  }
  return list;
}

Status CheckFiles(const std::vector<Sent>& files) {
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

// Looks at every file and every limit before anything is sent; hashes come with UploadLaunch().
Result<v1::JobSpec> LaunchJob(const Options& options) {
  const std::string& command = options.program.front();
  for (const std::string& word : options.program) {
    if (FirstBadUtf8(word) != std::string::npos) {
      return InvalidArgument("\"{}\" is not UTF-8: a command and its arguments must be",
                             ToValidUtf8(word));
    }
  }
  for (const auto& [name, value] : options.job_environment) {
    if (FirstBadUtf8(name) != std::string::npos || FirstBadUtf8(value) != std::string::npos) {
      return InvalidArgument("--env {}={}: not UTF-8", ToValidUtf8(name), ToValidUtf8(value));
    }
  }
  const bool sent = IsSent(options);
  if (sent) MUSTER_TRY(CheckRunnable(command, true));
  MUSTER_TRY_ASSIGN(const Listing list, FilesOf(options));
  const std::vector<Sent>& files = list.files;
  MUSTER_TRY(CheckFiles(files));
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
  MUSTER_TRY_ASSIGN(const Listing list, FilesOf(options));
  const std::vector<Sent>& files = list.files;
  for (const std::string& what : list.left_out) {
    terminal.err << "--send: " << what << ": not sent" << std::endl;
  }
  // By their number they find their places in the spec, which was made from an earlier look.
  const bool same =
      std::equal(files.begin(), files.end(), launch.files().begin(), launch.files().end(),
                 [](const Sent& sent, const auto& file) { return sent.there == file.path(); });
  if (!same) return Aborted("the files of --send changed while they were sent; try again");
  for (std::size_t i = 0; i < files.size(); ++i) {
    MUSTER_TRY_ASSIGN(const std::string sha256, UploadFile(terminal, api, "--send", files[i].here));
    launch.mutable_files(static_cast<int>(i))->set_sha256(sha256);
  }
  return Ok();
}

}  // namespace muster::cli
