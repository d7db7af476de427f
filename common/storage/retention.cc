// Which checkpoints there are below a folder, and which of them go.
#include <algorithm>
#include <optional>
#include <string_view>

#include "common/base/number_in.h"
#include "common/storage/checkpoint.h"
#include "common/storage/manifest.h"

namespace muster::storage {
namespace {

constexpr std::string_view kPrefix = "step-";

}  // namespace

Result<std::vector<StepFolder>> ListStepFolders(const std::string& root, FileSystem& files) {
  std::vector<StepFolder> found;
  const Result<std::vector<std::string>> names = files.List(root);
  if (names.status().code() == StatusCode::kNotFound) return found;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const std::string path = JoinPath(root, name);
    const std::optional<std::uint64_t> step = StepOfDirectory(name);
    // Not what a user called alike: what has no manifest is deleted.
    if (!step || path != CheckpointDirectory(root, *step)) continue;
    // Not knowing is not "no manifest".
    MUSTER_TRY_ASSIGN(const bool committed, IsCommitted(path, files));
    found.push_back({*step, path, committed});
  }
  std::sort(found.begin(), found.end(),
            [](const StepFolder& a, const StepFolder& b) { return a.step > b.step; });
  return found;
}

Result<bool> IsCommitted(const std::string& directory, FileSystem& files) {
  return files.Exists(JoinPath(directory, kManifestName));
}

Status RemoveCheckpoint(const std::string& directory, FileSystem& files) {
  // Somebody has moved it and left a link in its place. Through that its manifest alone would go,
  // and what was moved would be no checkpoint any more.
  if (files.IsLink(directory)) return files.Remove(directory);
  MUSTER_TRY_ASSIGN(const bool committed, IsCommitted(directory, files));
  if (committed) {
    MUSTER_TRY(files.Remove(JoinPath(directory, kManifestName)));
    MUSTER_TRY(files.SyncFolder(directory));
  }
  return files.RemoveTree(directory);
}

std::string CheckpointDirectory(const std::string& root, std::uint64_t step) {
  return JoinPath(root, fmt::format("{}{:012}", kPrefix, step));
}

std::optional<std::uint64_t> StepOfDirectory(std::string_view directory) {
  while (directory.ends_with('/')) directory.remove_suffix(1);
  std::string_view name = directory.substr(directory.rfind('/') + 1);
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  return NumberIn<std::uint64_t>(name);
}

Result<std::vector<std::string>> ListCheckpoints(const std::string& root, FileSystem& files) {
  MUSTER_TRY_ASSIGN(const std::vector<StepFolder> found, ListStepFolders(root, files));
  std::vector<std::string> committed;
  for (const StepFolder& checkpoint : found) {
    if (checkpoint.committed) committed.push_back(checkpoint.path);
  }
  return committed;
}

Status Collect(const std::string& root, std::uint32_t keep, const std::string& except,
               FileSystem& files) {
  MUSTER_TRY_ASSIGN(const std::vector<StepFolder> found, ListStepFolders(root, files));
  std::uint32_t kept = 0;
  Status first;
  for (const StepFolder& checkpoint : found) {
    if (checkpoint.committed && kept < keep) {
      ++kept;
      continue;
    }
    if (checkpoint.path == except) continue;
    // One that cannot be removed does not keep the others.
    const Status removed = RemoveCheckpoint(checkpoint.path, files);
    if (first.ok()) first = removed;
  }
  return first;
}

}  // namespace muster::storage
