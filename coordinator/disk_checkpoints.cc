#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include <unistd.h>

#include "common/storage/checkpoint.h"
#include "common/storage/safetensors.h"
#include "coordinator/checkpoints.h"

namespace muster::coordinator {
namespace {

// Said before the first step, not after hours of training.
Status RequireWritable(const std::string& root) {
  std::error_code error;
  std::filesystem::create_directories(root, error);
  const int cause = error ? error.value() : access(root.c_str(), W_OK | X_OK) != 0 ? errno : 0;
  if (cause == 0) return Ok();
  std::array<char, 256> host{};
  (void)gethostname(host.data(), host.size() - 1);
  return FailedPrecondition(
      "the checkpoint folder {} cannot be written on host {}: {}; change checkpoint.directory or "
      "its permissions",
      root, host.data(), std::generic_category().message(cause));
}

constexpr char kBuffersFile[] = "buffers.safetensors";
constexpr char kFrozenFile[] = "frozen.safetensors";

Result<v1::TensorSet> ReadBuffers(const std::string& directory) {
  v1::TensorSet set;
  MUSTER_TRY_ASSIGN(const auto checkpoint, storage::Checkpoint::Open(directory));
  for (const v1::TensorSlice& slice : checkpoint->manifest().slices()) {
    if (slice.file() != kBuffersFile) continue;
    const std::vector<std::int64_t> shape(slice.shape().begin(), slice.shape().end());
    MUSTER_TRY_ASSIGN(const std::uint64_t bytes,
                      storage::TensorBytes(static_cast<DType>(slice.dtype()), shape));
    v1::TensorValue& value = *set.add_tensors();
    value.set_name(slice.name());
    value.set_dtype(slice.dtype());
    *value.mutable_shape() = slice.shape();
    value.mutable_data()->resize(bytes);
    MUSTER_TRY(checkpoint->ReadRows(slice.name(), 0, slice.rows(),
                                    std::as_writable_bytes(std::span(*value.mutable_data()))));
  }
  return set;
}

Result<v1::SaveReport> WriteSet(const std::string& directory, const std::string& name,
                                const v1::TensorSet& set) {
  v1::SaveReport report;
  std::vector<storage::TensorToWrite> tensors;
  for (const v1::TensorValue& value : set.tensors()) {
    const std::vector<std::int64_t> shape(value.shape().begin(), value.shape().end());
    tensors.push_back({value.name(), static_cast<DType>(value.dtype()), shape,
                       std::as_bytes(std::span(value.data()))});
    v1::TensorSlice& slice = *report.add_slices();
    slice.set_name(value.name());
    slice.set_dtype(value.dtype());
    *slice.mutable_shape() = value.shape();
    slice.set_rows(shape.empty() ? 1 : shape[0]);
    slice.set_file(name);
    slice.set_key(value.name());
  }
  MUSTER_TRY_ASSIGN(*report.mutable_file(), storage::WriteSafetensors(directory, name, tensors));
  return report;
}

Result<std::vector<v1::SaveReport>> WriteAll(const std::string& directory,
                                             const v1::ModelValues& values) {
  std::vector<v1::SaveReport> reports;
  const auto write = [&](const char* name, const v1::TensorSet& set) -> Status {
    if (set.tensors_size() == 0) return Ok();
    MUSTER_TRY_ASSIGN(reports.emplace_back(), WriteSet(directory, name, set));
    return Ok();
  };
  MUSTER_TRY(write(kBuffersFile, values.buffers()));
  MUSTER_TRY(write(kFrozenFile, values.frozen()));
  return reports;
}

Result<Checkpoints::Found> Search(const std::string& root, const Checkpoints::IsOurs& ours,
                                  const std::set<std::string>& refused) {
  MUSTER_TRY(RequireWritable(root));
  Checkpoints::Found found;
  MUSTER_TRY_ASSIGN(const std::vector<std::string> directories, storage::ListCheckpoints(root));
  for (const std::string& directory : directories) {
    if (refused.contains(directory)) continue;
    const Result<v1::CheckpointManifest> manifest = storage::ReadManifest(directory);
    if (manifest.ok() && !ours(*manifest)) {
      return FailedPrecondition(
          "{} holds a checkpoint of job {} (\"{}\"), whose spec is another: give this job a "
          "checkpoint.directory of its own (or submit it with --restart: what is there is then set "
          "aside)",
          directory, manifest->job_id(), manifest->job_name());
    }
    Status status = manifest.ok() ? storage::Verify(directory) : manifest.status();
    if (status.ok()) {
      Result<v1::TensorSet> buffers = ReadBuffers(directory);
      status = buffers.status();
      if (status.ok()) found.buffers = *std::move(buffers);
    }
    if (status.ok()) {
      found.directory = directory;
      found.step = manifest->step();
      return found;
    }
    found.refused.push_back({directory, StepOfDirectory(directory), Message(status)});
  }
  return found;
}

Result<std::string> MoveAside(const std::string& root) {
  MUSTER_TRY_ASSIGN(const std::vector<std::string> directories, storage::ListCheckpoints(root));
  if (directories.empty()) return std::string();
  std::error_code error;
  std::string aside;
  for (int number = 1; aside.empty(); ++number) {
    const std::string name = fmt::format("{}/set-aside-{}", root, number);
    if (std::filesystem::create_directory(name, error)) aside = name;
    if (error) return FromErrno(error.value(), "make " + name);
  }
  for (const std::string& directory : directories) {
    const std::string to = aside + "/" + std::filesystem::path(directory).filename().string();
    std::filesystem::rename(directory, to, error);
    if (error) return FromErrno(error.value(), fmt::format("move {} to {}", directory, to));
  }
  return aside;
}

Result<std::string> MakeEmpty(const std::string& root, std::uint64_t step) {
  const std::string directory = storage::CheckpointDirectory(root, step);
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  if (error) return FromErrno(error.value(), "remove " + directory);
  std::filesystem::create_directories(directory, error);
  if (error) return FromErrno(error.value(), "make " + directory);
  return directory;
}

Result<Checkpoints::Committed> CommitAndCollect(const std::string& root,
                                                const std::string& directory,
                                                const v1::CheckpointManifest& manifest,
                                                std::uint32_t keep) {
  MUSTER_TRY(storage::Commit(directory, manifest));
  Checkpoints::Committed committed;
  for (const v1::CheckpointFile& file : manifest.files()) committed.bytes += file.bytes();
  // The checkpoint counts whether or not old ones could be removed.
  (void)storage::Collect(root, keep, directory);
  MUSTER_TRY_ASSIGN(committed.kept, storage::ListCheckpoints(root));
  return committed;
}

// Runs `work` off the strand and hands its value to `then` on it.
template <class Value, class Work>
void RunThen(Offload& offload, Work work, std::function<void(Result<Value>)> then) {
  auto result = std::make_shared<Result<Value>>(Unknown("not run"));
  offload.Run([result, work = std::move(work)] { *result = work(); },
              [result, then = std::move(then)] { then(std::move(*result)); });
}

}  // namespace

std::uint64_t StepOfDirectory(const std::string& directory) {
  const std::string name = std::filesystem::path(directory).filename().string();
  std::uint64_t step = 0;
  if (name.starts_with("step-")) {
    std::from_chars(name.data() + 5, name.data() + name.size(), step);
  }
  return step;
}

void DiskCheckpoints::FindNewest(const std::string& root, IsOurs ours,
                                 const std::set<std::string>& refused,
                                 std::function<void(Result<Found>)> then) {
  RunThen<Found>(
      offload_, [root, ours = std::move(ours), refused] { return Search(root, ours, refused); },
      std::move(then));
}

void DiskCheckpoints::SetAside(const std::string& root,
                               std::function<void(Result<std::string>)> then) {
  RunThen<std::string>(offload_, [root] { return MoveAside(root); }, std::move(then));
}

void DiskCheckpoints::Prepare(const std::string& root, std::uint64_t step,
                              std::function<void(Result<std::string>)> then) {
  RunThen<std::string>(offload_, [root, step] { return MakeEmpty(root, step); }, std::move(then));
}

void DiskCheckpoints::WriteValues(const std::string& directory, v1::ModelValues values,
                                  std::function<void(Result<std::vector<v1::SaveReport>>)> then) {
  RunThen<std::vector<v1::SaveReport>>(
      offload_,
      [directory, values = std::make_shared<v1::ModelValues>(std::move(values))] {
        return WriteAll(directory, *values);
      },
      std::move(then));
}

void DiskCheckpoints::Commit(const std::string& root, const std::string& directory,
                             v1::CheckpointManifest manifest, std::uint32_t keep,
                             std::function<void(Result<Committed>)> then) {
  RunThen<Committed>(
      offload_,
      [root, directory, manifest = std::move(manifest), keep] {
        return CommitAndCollect(root, directory, manifest, keep);
      },
      std::move(then));
}

void DiskCheckpoints::ReadManifest(const std::string& directory,
                                   std::function<void(Result<v1::CheckpointManifest>)> then) {
  RunThen<v1::CheckpointManifest>(
      offload_, [directory] { return storage::ReadManifest(directory); }, std::move(then));
}

void DiskCheckpoints::Discard(const std::string& directory) {
  offload_.Run(
      [directory] {
        std::error_code error;
        std::filesystem::remove_all(directory, error);
      },
      [] {});
}

}  // namespace muster::coordinator
