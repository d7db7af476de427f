// Checkpoints: one safetensors file for each parameter server, and a manifest that is renamed into
// place last. A directory without a valid manifest is no checkpoint. docs/formats/checkpoint.md.
//
// Threading: free functions and const methods from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/storage/file_system.h"

namespace muster::v1 {
class CheckpointFile;
class CheckpointManifest;
}  // namespace muster::v1

namespace muster::storage {

// A tensor to write: `data` is row-major and must live through the call.
struct TensorToWrite {
  std::string key;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

// Every function takes the file system to work on last; tests pass a fake.

// Writes a safetensors file under a temporary name, syncs it, renames it, syncs the folder, which
// it makes if need be. On any error no file is left behind, but for one that was there under that
// name, or the new one in its place. kResourceExhausted: the disk is full. kInvalidArgument: a key
// is repeated, a size does not fit its shape.
Result<v1::CheckpointFile> WriteSafetensors(const std::string& directory, const std::string& name,
                                            std::span<const TensorToWrite> tensors,
                                            FileSystem& files = RealFileSystem());

// Makes a checkpoint visible: reads each file back and checks that it is what its writer reported,
// then writes the manifest (format version and hash filled in), syncs and renames it, and syncs the
// folder and the one above. Until the rename nothing sees the checkpoint, so a crash at any point
// leaves the one before it current. Removes what writers that were given up have left (*.tmp).
//   kDataLoss: a file is not what was reported.  kInvalidArgument: the slices do not cover each
//   tensor exactly once (somebody has not reported), or the manifest is longer than readers take.
Status Commit(const std::string& directory, v1::CheckpointManifest manifest,
              FileSystem& files = RealFileSystem());

// The manifest alone; its own hash is verified. kNotFound: no manifest, so no checkpoint.
// kDataLoss: damaged. kFailedPrecondition: written by a newer version.
Result<v1::CheckpointManifest> ReadManifest(const std::string& directory,
                                            FileSystem& files = RealFileSystem());

// ReadManifest() and every byte of every file. kDataLoss names the file and the chunk.
Status Verify(const std::string& directory, FileSystem& files = RealFileSystem());

// A committed checkpoint opened for reading. Every chunk is verified each time that it is read, and
// reading needs no memory but one chunk for each file.
class Checkpoint {
 public:
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& directory,
                                                  FileSystem& files = RealFileSystem());
  virtual ~Checkpoint() = default;
  virtual const v1::CheckpointManifest& manifest() const = 0;
  // Shape of a whole tensor; kNotFound.
  virtual Result<std::vector<std::int64_t>> Shape(const std::string& name) const = 0;
  // Rows [row_offset, row_offset + rows) of a tensor, whatever slices it was saved in.
  // A scalar has one row. kInvalidArgument: out of range or `into` has another size. kDataLoss.
  virtual Status ReadRows(const std::string& name, std::int64_t row_offset, std::int64_t rows,
                          std::span<std::byte> into) const = 0;
};

// Step-numbered checkpoints below one folder: <root>/step-<12 digits>.
std::string CheckpointDirectory(const std::string& root, std::uint64_t step);
// 400 for "/c/step-000000000400", and for "step-400"; nothing for other names.
std::optional<std::uint64_t> StepOfDirectory(std::string_view directory);
// Committed ones, newest first (by manifest's presence; not verified). A missing folder: none.
Result<std::vector<std::string>> ListCheckpoints(const std::string& root,
                                                 FileSystem& files = RealFileSystem());
// The folders of one root that have a checkpoint's name, newest first. A missing folder: none.
struct StepFolder {
  std::uint64_t step = 0;
  std::string path;
  bool committed = false;
};
Result<std::vector<StepFolder>> ListStepFolders(const std::string& root,
                                                FileSystem& files = RealFileSystem());
// It has a manifest (which is not read).
Result<bool> IsCommitted(const std::string& directory, FileSystem& files = RealFileSystem());
// Deletes a checkpoint, or what there is of one, its manifest first: a crash in the middle leaves
// no checkpoint with holes. One that is not there is no error. Where a symbolic link stands in its
// place, that alone goes.
Status RemoveCheckpoint(const std::string& directory, FileSystem& files = RealFileSystem());
// Deletes uncommitted directories (`except` may be one that is being written) and all but the
// newest `keep` committed ones, never `except`. Answers the first error, after trying all.
Status Collect(const std::string& root, std::uint32_t keep, const std::string& except,
               FileSystem& files = RealFileSystem());
// All parameters (no slots) as one safetensors file that any reader opens; replaces `file` whole or
// leaves it as it was.
Status Export(const std::string& directory, const std::string& file,
              FileSystem& files = RealFileSystem());

// A slot of variable `name`, as checkpoints call it: "w/slot/momentum". No variable's name may
// contain "/slot/".
std::string SlotName(const std::string& name, const std::string& slot);
bool IsSlotName(const std::string& name);

}  // namespace muster::storage
