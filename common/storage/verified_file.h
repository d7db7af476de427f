// A file whose every chunk was hashed when it was written: reads hand out only what still fits.
//
// Threading: const methods from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/storage/file_system.h"
#include "muster/v1/checkpoint.pb.h"

namespace muster::storage {

class VerifiedFile {
 public:
  // kDataLoss: the file is missing or has another size than `expected` says.
  static Result<std::unique_ptr<VerifiedFile>> Open(FileSystem& files, const std::string& directory,
                                                    const v1::CheckpointFile& expected);

  std::uint64_t size() const { return expected_.bytes(); }
  // kDataLoss: a chunk that holds some of these bytes is not what was written.
  // kInvalidArgument: beyond the end.
  Status Read(std::uint64_t offset, std::span<std::byte> into) const;
  // Reads everything.
  Status VerifyAll() const;

 private:
  VerifiedFile(std::string path, std::unique_ptr<ReadableFile> file, v1::CheckpointFile expected);

  std::uint64_t ChunkSize(std::uint64_t chunk) const;
  // Reads a whole chunk and checks it.
  Status ReadChunk(std::uint64_t chunk, std::span<std::byte> into) const;

  const std::string path_;
  const std::unique_ptr<ReadableFile> file_;
  const v1::CheckpointFile expected_;
  // The last chunk that was wanted in part: neighbouring small tensors share it.
  mutable Mutex mutex_;
  mutable std::vector<std::byte> kept_ MUSTER_GUARDED_BY(mutex_);
  mutable std::uint64_t kept_chunk_ MUSTER_GUARDED_BY(mutex_) = UINT64_MAX;
};

}  // namespace muster::storage
