#include "common/storage/owner.h"

#include <span>

#include <google/protobuf/util/json_util.h>

namespace muster::storage {
namespace {

constexpr std::uint64_t kMostBytes = 64 << 10;

// Writes the mark under a name of its own and puts it into place.
Status Mark(const std::string& root, const v1::CheckpointOwner& owner, FileSystem& files,
            Status (FileSystem::*put)(const std::string&, const std::string&)) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (const auto printed = google::protobuf::util::MessageToJsonString(owner, &text, options);
      !printed.ok()) {
    return InvalidArgument("the owner of {} cannot be written as JSON: {}", root,
                           printed.ToString());
  }
  const std::string path = JoinPath(root, kOwnerName);
  const std::string staged = TemporaryName(path);
  const auto write = [&]() -> Status {
    MUSTER_TRY_ASSIGN(const auto file, files.Create(staged));
    MUSTER_TRY(file->Append(std::as_bytes(std::span(text))));
    MUSTER_TRY(file->Sync());
    MUSTER_TRY(file->Close());
    return (files.*put)(staged, path);
  };
  if (const Status status = write(); !status.ok()) {
    (void)files.Remove(staged);
    return status;
  }
  return files.SyncFolder(root);
}

}  // namespace

Result<std::optional<v1::CheckpointOwner>> ReadOwner(const std::string& root, FileSystem& files) {
  const std::string path = JoinPath(root, kOwnerName);
  const Result<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (file.status().code() == StatusCode::kNotFound) return std::nullopt;
  if (!file.ok()) return file.status();
  v1::CheckpointOwner owner;
  if ((*file)->size() <= kMostBytes) {
    std::string text((*file)->size(), '\0');
    MUSTER_TRY((*file)->Read(0, std::as_writable_bytes(std::span(text))));
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;
    if (google::protobuf::util::JsonStringToMessage(text, &owner, options).ok() &&
        !owner.job_id().empty()) {
      return owner;
    }
  }
  return DataLoss("{} cannot be read: if no job writes below {}, remove it and submit again", path,
                  root);
}

Status ClaimFolder(const std::string& root, const v1::CheckpointOwner& owner, FileSystem& files) {
  return Mark(root, owner, files, &FileSystem::RenameNew);
}

Status TakeOverFolder(const std::string& root, const v1::CheckpointOwner& owner,
                      FileSystem& files) {
  return Mark(root, owner, files, &FileSystem::Rename);
}

Status ReleaseFolder(const std::string& root, const v1::CheckpointOwner& owner, FileSystem& files) {
  MUSTER_TRY_ASSIGN(const std::optional<v1::CheckpointOwner> now, ReadOwner(root, files));
  if (!now || !SameJob(*now, owner)) return Ok();
  return files.Remove(JoinPath(root, kOwnerName));
}

bool SameJob(const v1::CheckpointOwner& a, const v1::CheckpointOwner& b) {
  return a.cluster_id() == b.cluster_id() && a.job_id() == b.job_id();
}

}  // namespace muster::storage
