#include <memory>
#include <span>

#include <fmt/core.h>
#include <sys/stat.h>

#include "cli/commands.h"
#include "cli/stream_files.h"
#include "common/base/byte_count.h"
#include "common/storage/file_system.h"

namespace muster::cli {
namespace {

struct Written {
  std::uint64_t bytes = 0;
};

// Beside it, then in its place.
Result<Written> Receive(JobApi& api, const std::string& file, storage::FileSystem& files) {
  const std::string staged = storage::TemporaryName(file);
  const auto created = files.Create(staged);
  if (!created.ok()) return OfFiles(created.status());
  const auto& out = *created;
  // It holds what people have submitted.
  (void)::chmod(staged.c_str(), 0600);
  Written written;
  const auto finish = [&]() -> Status {
    MUSTER_TRY(out->Sync());
    MUSTER_TRY(out->Close());
    MUSTER_TRY(files.Rename(staged, file));
    return files.SyncFolder(storage::ParentOf(file));
  };
  const auto receive = [&]() -> Status {
    MUSTER_TRY(api.Backup([&](const std::string& piece) {
      written.bytes += piece.size();
      return OfFiles(out->Append(std::as_bytes(std::span(piece))));
    }));
    return OfFiles(finish());
  };
  if (const Status status = receive(); !status.ok()) {
    (void)files.Remove(staged);
    return status;
  }
  return written;
}

}  // namespace

ExitCode Backup(const Context& context) {
  const std::string& file = context.options.backup_file;
  const bool to_stdout = file == "-";
  const Result<std::string> place = PlaceOfOutput(file);
  if (!place.ok()) return Fail(context, place.status());
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  const auto stream = FilesWritingTo(context.terminal.out);
  const Result<Written> written =
      Receive(**api, *place, to_stdout ? *stream : storage::RealFileSystem());
  if (!written.ok()) {
    const ExitCode code = Fail(context, written.status());
    // As for all that was to go to stdout.
    return context.terminal.out ? code : ExitCode::kJobFailed;
  }
  context.terminal.err << fmt::format(
      "wrote {} to {}; checkpoints, logs and the token are not in it\n", ByteCount(written->bytes),
      to_stdout ? "standard output" : file);
  return ExitCode::kDone;
}

}  // namespace muster::cli
