#include <ctime>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/format.h"
#include "cli/stream_files.h"
#include "common/base/byte_count.h"
#include "common/base/utf8.h"
#include "common/base/words.h"
#include "common/storage/checkpoint.h"
#include "common/storage/manifest.h"
#include "muster/v1/checkpoint.pb.h"

namespace muster::cli {
namespace {

// "steps 20, 40"
std::string Steps(const v1::ListCheckpointsReply& reply) {
  const auto count = static_cast<std::uint64_t>(reply.checkpoints_size());
  return fmt::format("{} {}", Agreeing(count, "step", "steps"),
                     Joined(reply.checkpoints(), kMostNamed, &v1::CheckpointInfo::step));
}

Status NoCheckpoint(const Options& options, const v1::ListCheckpointsReply& reply) {
  const auto count = static_cast<std::uint64_t>(reply.checkpoints_size());
  if (count == 0) return NotFound("job {} has no checkpoint", options.job);
  if (options.step) {
    return NotFound("job {} has no checkpoint of step {}; it has {}", options.job, *options.step,
                    Steps(reply));
  }
  return DataLoss("{} of job {} {} damaged; `muster checkpoints list {}` tells how",
                  count == 1 ? "the only checkpoint" : fmt::format("all {} checkpoints", count),
                  options.job, Agreeing(count, "is", "are"), options.job);
}

// A checkpoint's folder is of one step. One whose manifest cannot be read is told of later.
Status CheckGivenStep(const std::string& path, std::optional<std::uint64_t> step) {
  if (!step) return Ok();
  const Result<v1::CheckpointManifest> manifest = storage::ReadManifest(path);
  if (!manifest.ok() || manifest->step() == *step) return Ok();
  return InvalidArgument("{} is the checkpoint of step {}, and --step says {}: leave out --step",
                         path, manifest->step(), *step);
}

// A folder that was given in place of a job: without one it is the command line that is wrong.
Result<std::string> GivenFolder(const std::string& path, std::optional<std::uint64_t> step) {
  MUSTER_TRY_ASSIGN(const bool committed, storage::IsCommitted(path));
  if (committed) {
    MUSTER_TRY(CheckGivenStep(path, step));
    return path;
  }
  MUSTER_TRY_ASSIGN(const bool there, storage::RealFileSystem().Exists(path));
  if (!there) return NotFound("there is no folder {}", path);
  const auto below = storage::ListCheckpoints(path);
  return InvalidArgument(
      "{} is no checkpoint: it has no MANIFEST.json{}", path,
      below.ok() && !below->empty()
          ? fmt::format("; the newest of {} in it is {}", below->size(), below->front())
          : std::string("; name a job, or a folder like step-000000000100"));
}

// The folder that JOB and --step mean. JOB may itself be a folder, by its path or, where it is
// below the working directory, by its name: checkpoints can be looked at without a cluster.
Result<std::string> FindCheckpoint(const Context& context) {
  const Options& options = context.options;
  if (options.job.find('/') != std::string::npos) {
    Result<std::string> given = GivenFolder(options.job, options.step);
    if (!given.ok()) return OfFiles(given.status());
    return given;
  }
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::path(options.job) / storage::kManifestName, error)) {
    MUSTER_TRY(CheckGivenStep(options.job, options.step));
    return options.job;
  }
  MUSTER_TRY_ASSIGN(JobApi* const api, context.connect());
  MUSTER_TRY_ASSIGN(const v1::ListCheckpointsReply reply, api->ListCheckpoints(options.job));
  const v1::CheckpointInfo* best = nullptr;
  for (const v1::CheckpointInfo& info : reply.checkpoints()) {
    if (options.step ? info.step() == *options.step
                     : info.refused().empty() && (best == nullptr || info.step() > best->step())) {
      best = &info;
    }
  }
  if (best == nullptr) return NoCheckpoint(options, reply);
  return best->directory();
}

// Milliseconds since 1970 of a manifest's "2026-11-21T14:03:09Z"; 0 when it is none.
std::int64_t CreatedMs(const std::string& rfc3339) {
  std::tm utc{};
  if (strptime(rfc3339.c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc) == nullptr) return 0;
  return static_cast<std::int64_t>(timegm(&utc)) * 1000;
}

// As Fail(), for what this host's own files answer: that they refuse is no question of the token.
ExitCode FailOnFiles(const Context& context, const Status& status) {
  const ExitCode code = Fail(context, status);
  return status.code() == StatusCode::kPermissionDenied ? ExitCode::kRefused : code;
}

}  // namespace

ExitCode CheckpointsList(const Context& context) {
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  const Result<v1::ListCheckpointsReply> reply = (*api)->ListCheckpoints(context.options.job);
  if (!reply.ok()) return Fail(context, reply.status());
  if (context.options.output == Output::kJson) {
    context.terminal.out << Json(*reply);
    return ExitCode::kDone;
  }
  std::vector<std::vector<std::string>> rows{{"STEP", "SAVED", "SIZE", "STALL", "FOLDER"}};
  for (const v1::CheckpointInfo& info : reply->checkpoints()) {
    rows.push_back(
        {std::to_string(info.step()), DateTime(info.created_ms()), ByteCount(info.bytes()),
         fmt::format("{} ms", info.stall_ms()),
         info.directory() + (info.refused().empty() ? "" : " REFUSED: " + info.refused())});
  }
  if (reply->checkpoints().empty()) {
    context.terminal.err << fmt::format("job {} has no checkpoints\n", context.options.job);
  } else {
    context.terminal.out << Table(rows);
  }
  return ExitCode::kDone;
}

ExitCode CheckpointsVerify(const Context& context) {
  const Result<std::string> directory = FindCheckpoint(context);
  if (!directory.ok()) return Fail(context, directory.status());
  const Result<v1::CheckpointManifest> manifest = storage::ReadManifest(*directory);
  if (!manifest.ok()) return FailOnFiles(context, manifest.status());
  if (const Status status = storage::Verify(*directory); !status.ok()) {
    return FailOnFiles(context, status);
  }
  std::uint64_t bytes = 0;
  for (const v1::CheckpointFile& file : manifest->files()) bytes += file.bytes();
  if (context.options.output == Output::kJson) {
    v1::CheckpointInfo info;
    info.set_step(manifest->step());
    info.set_directory(ToValidUtf8(*directory));
    info.set_created_ms(CreatedMs(manifest->created_at()));
    info.set_bytes(bytes);
    context.terminal.out << Json(info);
    return ExitCode::kDone;
  }
  context.terminal.out << fmt::format(
      "{}: step {}, {}, {}: good\n", *directory, manifest->step(),
      Counted(static_cast<std::uint64_t>(manifest->files_size()), "file"), ByteCount(bytes));
  return ExitCode::kDone;
}

ExitCode CheckpointsExport(const Context& context) {
  const Result<std::string> directory = FindCheckpoint(context);
  if (!directory.ok()) return Fail(context, directory.status());
  const std::string& file = context.options.export_file;
  const bool to_stdout = file == "-";
  const Result<std::string> place = PlaceOfOutput(file);
  if (!place.ok()) return Fail(context, place.status());
  const auto stream = FilesWritingTo(context.terminal.out);
  if (const Status status =
          storage::Export(*directory, *place, to_stdout ? *stream : storage::RealFileSystem());
      !status.ok()) {
    const ExitCode code = FailOnFiles(context, status);
    // As for all that was to go to stdout.
    return context.terminal.out ? code : ExitCode::kJobFailed;
  }
  context.terminal.err << fmt::format("wrote {} from {}\n", to_stdout ? "to standard output" : file,
                                      *directory);
  return ExitCode::kDone;
}

ExitCode CheckpointsGc(const Context& context) {
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  v1::CollectCheckpointsRequest request;
  request.set_job(context.options.job);
  request.set_dry_run(context.options.dry_run);
  request.set_finished(context.options.finished);
  const Result<v1::CollectCheckpointsReply> reply = (*api)->CollectCheckpoints(request);
  if (!reply.ok()) return Fail(context, reply.status());
  std::vector<std::vector<std::string>> rows{{"FOLDER", "SIZE", "WHY"}};
  bool failed = false;
  for (const v1::CollectCheckpointsReply::Folder& folder : reply->folders()) {
    if (folder.failure().empty()) {
      rows.push_back({folder.directory(), ByteCount(folder.bytes()), folder.why()});
      continue;
    }
    failed = true;
    context.terminal.err << fmt::format("error: {} stays: {}\n", folder.directory(),
                                        folder.failure());
  }
  if (context.options.output == Output::kJson) {
    context.terminal.out << Json(*reply);
  } else {
    if (rows.size() > 1) context.terminal.out << Table(rows);
    context.terminal.err << fmt::format("{} {} in {}\n", request.dry_run() ? "would free" : "freed",
                                        ByteCount(reply->bytes()),
                                        Counted(rows.size() - 1, "folder"));
  }
  return failed ? ExitCode::kRefused : ExitCode::kDone;
}

}  // namespace muster::cli
