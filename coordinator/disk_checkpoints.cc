#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/number_in.h"
#include "common/storage/checkpoint.h"
#include "common/storage/module_values.h"
#include "common/storage/owner.h"
#include "common/storage/safetensors.h"
#include "coordinator/checkpoint_folder.h"
#include "coordinator/checkpoints.h"

namespace muster::coordinator {
namespace {

constexpr std::string_view kAsidePrefix = "set-aside-";

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
  MUSTER_TRY(write(storage::kBuffersFile, values.buffers()));
  MUSTER_TRY(write(storage::kFrozenFile, values.frozen()));
  return reports;
}

// A folder that has lost everything is a mount that is not there, mostly. (What the journal lists
// need not be there itself: a coordinator may have ended between a commit and its row.)
Status RequireKnown(const Checkpoints::Search& search, const std::vector<std::string>& listed) {
  if (search.known.empty() || !listed.empty()) return Ok();
  const std::string& newest = search.known.back();
  const std::filesystem::path before = std::filesystem::path(newest).parent_path();
  // With a / at their ends, so that one that was given with it is the same.
  if ((before / "").lexically_normal() !=
      (std::filesystem::path(search.root) / "").lexically_normal()) {
    return NotFound(
        "{} holds no checkpoint, and the job's {} were written elsewhere, {} the newest: was the "
        "coordinator's checkpoint-dir changed? Give it the one from before, or move {} there. If "
        "they are gone for good, stop the job and submit it with --restart",
        search.root, search.known.size(), newest, before.string());
  }
  return NotFound(
      "{} holds none of the {} checkpoints that were written there, {} the newest: is it mounted? "
      "If "
      "they are gone for good, stop the job and submit it with --restart",
      search.root, search.known.size(), newest);
}

std::uint64_t BytesOf(const v1::CheckpointManifest& manifest) {
  std::uint64_t bytes = 0;
  for (const v1::CheckpointFile& file : manifest.files()) bytes += file.bytes();
  return bytes;
}

// The newest checkpoint that is whole. Claims the folder for the job before it looks; a damaged one
// is noted and the next older one tried, one that cannot be read now ends the search.
Result<Checkpoints::Found> FindIn(const Checkpoints::Search& search) {
  Checkpoints::Found found;
  if (search.known.empty()) MUSTER_TRY(RequireWritable(search.root));
  MUSTER_TRY_ASSIGN(const std::vector<std::string> directories,
                    storage::ListCheckpoints(search.root));
  MUSTER_TRY(RequireKnown(search, directories));
  MUSTER_TRY_ASSIGN(found.taken_over, ClaimIfPossible(search.root, search.claimant));
  for (const std::string& directory : directories) {
    if (search.refused.contains(directory)) continue;
    const Result<v1::CheckpointManifest> manifest = storage::ReadManifest(directory);
    if (manifest.ok() && !search.ours(*manifest)) {
      return FailedPrecondition(
          "{} holds a checkpoint of job {} (\"{}\"), whose spec is another: give this job a "
          "checkpoint.directory of its own (or submit it with --restart: what is there is then set "
          "aside)",
          directory, manifest->job_id(), manifest->job_name());
    }
    Status status = manifest.status();
    if (status.ok() && search.verify) status = storage::Verify(directory);
    if (status.ok()) {
      Result<v1::TensorSet> buffers = storage::ReadBuffers(directory);
      status = buffers.status();
      if (status.ok()) found.buffers = *std::move(buffers);
    }
    if (status.ok()) {
      found.directory = directory;
      found.step = manifest->step();
      found.job_id = manifest->job_id();
      found.bytes = BytesOf(*manifest);
      return found;
    }
    // Only bytes that are proven wrong are damage; what cannot be read now may be good.
    if (status.code() != StatusCode::kDataLoss) return status;
    found.refused.push_back(
        {directory, storage::StepOfDirectory(directory).value_or(0), Message(status)});
  }
  return found;
}

std::string PathAside(const std::string& root, std::uint64_t number) {
  return fmt::format("{}/{}{}", root, kAsidePrefix, number);
}

// Numbers of the folders that earlier restarts have made, ascending.
Result<std::vector<std::uint64_t>> NumbersAside(const std::string& root) {
  std::vector<std::uint64_t> numbers;
  MUSTER_TRY_ASSIGN(const std::vector<std::string> names, storage::RealFileSystem().List(root));
  for (const std::string& name : names) {
    if (!name.starts_with(kAsidePrefix)) continue;
    const std::string_view digits = std::string_view(name).substr(kAsidePrefix.size());
    if (const auto number = NumberIn<std::uint64_t>(digits)) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

// Moves what there is into a new folder, then removes the oldest of such folders: nobody else
// collects them, and each holds whole checkpoints.
Result<Checkpoints::Aside> MoveAside(const std::string& root,
                                     const Checkpoints::Claimant& claimant) {
  MUSTER_TRY(RequireWritable(root));
  MUSTER_TRY(Claim(root, claimant).status());
  MUSTER_TRY_ASSIGN(const std::vector<std::string> directories, storage::ListCheckpoints(root));
  MUSTER_TRY_ASSIGN(std::vector<std::uint64_t> numbers, NumbersAside(root));
  if (directories.empty()) {
    // They may have been moved by an attempt that failed behind that.
    if (!numbers.empty()) {
      MUSTER_TRY(storage::RealFileSystem().SyncFolder(PathAside(root, numbers.back())));
    }
    MUSTER_TRY(storage::RealFileSystem().SyncFolder(root));
    return Checkpoints::Aside();
  }
  std::error_code error;
  numbers.push_back(numbers.empty() ? 1 : numbers.back() + 1);
  Checkpoints::Aside aside{
      .directory = PathAside(root, numbers.back()), .removed = {}, .retention = {}};
  // Somebody else's folder of that name is not filled.
  if (!std::filesystem::create_directory(aside.directory, error)) {
    return FromErrno(error ? error.value() : EEXIST, "make " + aside.directory);
  }
  for (const std::string& directory : directories) {
    const std::string to =
        aside.directory + "/" + std::filesystem::path(directory).filename().string();
    std::filesystem::rename(directory, to, error);
    if (error) {
      // It is tried again and again, each time in a folder of its own: those without anything would
      // take the place of what is kept.
      std::error_code ignored;
      std::filesystem::remove(aside.directory, ignored);
      return FromErrno(error.value(), fmt::format("move {} to {}", directory, to));
    }
  }
  // A power cut must not bring them back once the job has begun anew.
  MUSTER_TRY(storage::RealFileSystem().SyncFolder(aside.directory));
  MUSTER_TRY(storage::RealFileSystem().SyncFolder(root));
  while (numbers.size() > Checkpoints::kKeptAside) {
    const std::string oldest = PathAside(root, numbers.front());
    aside.retention = storage::RealFileSystem().RemoveTree(oldest);
    if (!aside.retention.ok()) break;
    aside.removed.push_back(oldest);
    numbers.erase(numbers.begin());
  }
  return aside;
}

Result<std::string> MakeEmpty(const std::string& root, std::uint64_t step,
                              const Checkpoints::Claimant& claimant) {
  const std::string directory = storage::CheckpointDirectory(root, step);
  MUSTER_TRY(storage::RealFileSystem().MakeFolders(root));
  MUSTER_TRY(Claim(root, claimant).status());
  MUSTER_TRY(storage::RemoveCheckpoint(directory));
  MUSTER_TRY(storage::RealFileSystem().MakeFolders(directory));
  return directory;
}

std::uint64_t BytesIn(const std::string& directory) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code one;
    const std::uint64_t size = at->is_regular_file(one) ? at->file_size(one) : 0;
    if (!one) bytes += size;
  }
  return bytes;
}

// What goes, and is gone unless it was to be named alone.
Result<std::vector<Checkpoints::Swept>> SweepOwn(const Checkpoints::Sweep& sweep) {
  std::vector<Checkpoints::Swept> swept;
  MUSTER_TRY_ASSIGN(const std::vector<storage::StepFolder> folders,
                    storage::ListStepFolders(sweep.root));
  std::size_t kept = 0;
  for (const storage::StepFolder& folder : folders) {
    if (folder.step == sweep.saving) continue;
    if (folder.path == sweep.saved) {
      ++kept;
      continue;
    }
    if (folder.committed && kept < sweep.keep) {
      if (sweep.refused.contains(folder.path)) continue;
      const Status sound = sweep.verify ? storage::Verify(folder.path) : Ok();
      // Only bytes that are proven wrong are damage.
      if (!sound.ok() && sound.code() != StatusCode::kDataLoss) return sound;
      kept += sound.ok() ? 1 : 0;
      continue;
    }
    swept.push_back({.directory = folder.path,
                     .bytes = BytesIn(folder.path),
                     .why = folder.committed ? sweep.why : "a save that was interrupted",
                     .failure = {}});
  }
  if (sweep.dry_run) return swept;
  for (Checkpoints::Swept& one : swept) one.failure = storage::RemoveCheckpoint(one.directory);
  return swept;
}

Result<std::vector<Checkpoints::Swept>> SweepOne(const Checkpoints::Sweep& sweep) {
  Result<std::optional<v1::CheckpointOwner>> owner = storage::ReadOwner(sweep.root);
  if (!owner.ok()) return owner.status();
  if (*owner &&
      ((*owner)->cluster_id() != sweep.cluster_id || sweep.live.contains((*owner)->job_id()))) {
    return std::vector<Checkpoints::Swept>();
  }
  return SweepOwn(sweep);
}

Result<Checkpoints::Committed> CommitAndSweep(const std::string& directory,
                                              const v1::CheckpointManifest& manifest,
                                              Checkpoints::Sweep sweep) {
  MUSTER_TRY(storage::Commit(directory, manifest));
  // From here on it counts, whatever becomes of old ones.
  Checkpoints::Committed committed;
  committed.bytes = BytesOf(manifest);
  sweep.saved = directory;
  const auto swept = SweepOwn(sweep);
  committed.retention = swept.status();
  for (const Checkpoints::Swept& one : swept.ok() ? *swept : std::vector<Checkpoints::Swept>()) {
    if (committed.retention.ok()) committed.retention = one.failure;
  }
  Result<std::vector<std::string>> kept = storage::ListCheckpoints(sweep.root);
  if (kept.ok()) committed.kept = *std::move(kept);
  return committed;
}

Result<std::vector<std::string>> RootsIn(const std::string& folder) {
  std::vector<std::string> roots;
  const Result<std::vector<std::string>> names = storage::RealFileSystem().List(folder);
  if (names.status().code() == StatusCode::kNotFound) return roots;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) roots.push_back(storage::JoinPath(folder, name));
  std::ranges::sort(roots);
  return roots;
}

// Runs `work` off the strand and hands its value to `then` on it.
template <class Value, class Work>
void RunThen(LaneOffload& offload, const std::string& root, Work work,
             std::function<void(Result<Value>)> then) {
  auto result = std::make_shared<Result<Value>>(
      ResourceExhausted("no thread can be started to look at {}", root));
  offload.Run(
      root, [result, work = std::move(work)] { *result = work(); },
      [result, then = std::move(then)] { then(std::move(*result)); });
}

}  // namespace

void DiskCheckpoints::Look(const std::string& root, const Claimant& claimant,
                           std::function<void(Status)> then) {
  RunThen<bool>(
      offload_, root,
      [root, claimant]() -> Result<bool> {
        MUSTER_TRY(LookAt(root, claimant));
        return true;
      },
      [then = std::move(then)](const Result<bool>& looked) { then(looked.status()); });
}

void DiskCheckpoints::FindNewest(const Search& search, std::function<void(Result<Found>)> then) {
  RunThen<Found>(offload_, search.root, [search] { return FindIn(search); }, std::move(then));
}

void DiskCheckpoints::SetAside(const std::string& root, const Claimant& claimant,
                               std::function<void(Result<Aside>)> then) {
  RunThen<Aside>(
      offload_, root, [root, claimant] { return MoveAside(root, claimant); }, std::move(then));
}

void DiskCheckpoints::Prepare(const std::string& root, std::uint64_t step, const Claimant& claimant,
                              std::function<void(Result<std::string>)> then) {
  RunThen<std::string>(
      offload_, root, [root, step, claimant] { return MakeEmpty(root, step, claimant); },
      std::move(then));
}

void DiskCheckpoints::WriteValues(const std::string& directory, v1::ModelValues values,
                                  std::function<void(Result<std::vector<v1::SaveReport>>)> then) {
  RunThen<std::vector<v1::SaveReport>>(
      offload_, storage::ParentOf(directory),
      [directory, values = std::make_shared<v1::ModelValues>(std::move(values))] {
        return WriteAll(directory, *values);
      },
      std::move(then));
}

void DiskCheckpoints::Commit(const std::string& root, const std::string& directory,
                             v1::CheckpointManifest manifest, std::uint32_t keep,
                             const std::set<std::string>& damaged,
                             std::function<void(Result<Committed>)> then) {
  RunThen<Committed>(
      offload_, root,
      [directory, manifest = std::move(manifest),
       sweep = Sweep{.root = root, .cluster_id = {}, .keep = keep, .refused = damaged}] {
        return CommitAndSweep(directory, manifest, sweep);
      },
      std::move(then));
}

void DiskCheckpoints::ReadManifest(const std::string& directory,
                                   std::function<void(Result<v1::CheckpointManifest>)> then) {
  RunThen<v1::CheckpointManifest>(
      offload_, storage::ParentOf(directory),
      [directory] { return storage::ReadManifest(directory); }, std::move(then));
}

void DiskCheckpoints::Collect(const Sweep& sweep,
                              std::function<void(Result<std::vector<Swept>>)> then) {
  RunThen<std::vector<Swept>>(
      offload_, sweep.root, [sweep] { return SweepOne(sweep); }, std::move(then));
}

void DiskCheckpoints::ListRoots(const std::string& folder,
                                std::function<void(Result<std::vector<std::string>>)> then) {
  RunThen<std::vector<std::string>>(
      offload_, folder, [folder] { return RootsIn(folder); }, std::move(then));
}

void DiskCheckpoints::Discard(const std::string& directory) {
  // What stays is collected after the next commit. One that was committed late, when nobody waited
  // for it any more, is a checkpoint all the same: those before it may have gone for it.
  offload_.Run(
      storage::ParentOf(directory),
      [directory] {
        const Result<bool> committed = storage::IsCommitted(directory);
        if (committed.ok() && !*committed) (void)storage::RemoveCheckpoint(directory);
      },
      [] {});
}

void DiskCheckpoints::Release(const std::string& root, const v1::CheckpointOwner& mark) {
  // A mark that stays is that of a job that has ended: its cluster's next one takes it over.
  offload_.Run(root, [root, mark] { (void)storage::ReleaseFolder(root, mark); }, [] {});
}

}  // namespace muster::coordinator
