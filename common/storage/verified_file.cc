#include "common/storage/verified_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/storage/hash.h"
#include "common/storage/safetensors.h"

namespace muster::storage {

VerifiedFile::VerifiedFile(std::string path, std::unique_ptr<ReadableFile> file,
                           v1::CheckpointFile expected)
    : path_(std::move(path)), file_(std::move(file)), expected_(std::move(expected)) {}

Result<std::unique_ptr<VerifiedFile>> VerifiedFile::Open(FileSystem& files,
                                                         const std::string& directory,
                                                         const v1::CheckpointFile& expected) {
  const std::string path = JoinPath(directory, expected.name());
  Result<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (file.status().code() == StatusCode::kNotFound) return DataLoss("{} is missing", path);
  if (!file.ok()) return file.status();
  if ((*file)->size() != expected.bytes()) {
    return DataLoss("{} has {} bytes; its writer reported {}", path, (*file)->size(),
                    expected.bytes());
  }
  const std::uint64_t chunks =
      expected.bytes() / kChunkBytes + (expected.bytes() % kChunkBytes != 0 ? 1 : 0);
  if (static_cast<std::uint64_t>(expected.chunks_size()) != chunks) {
    return DataLoss("{}: the manifest has {} hashes for {} chunks", path, expected.chunks_size(),
                    chunks);
  }
  return std::unique_ptr<VerifiedFile>(new VerifiedFile(path, *std::move(file), expected));
}

std::uint64_t VerifiedFile::ChunkSize(std::uint64_t chunk) const {
  return std::min(kChunkBytes, size() - chunk * kChunkBytes);
}

Status VerifiedFile::ReadChunk(std::uint64_t chunk, std::span<std::byte> into) const {
  MUSTER_TRY(file_->Read(chunk * kChunkBytes, into));
  const std::string hash = HashHex(into);
  const std::string& expected = expected_.chunks(static_cast<int>(chunk));
  if (hash == expected) return Ok();
  return DataLoss("{}: chunk {} (bytes {} to {}) has hash {}; its writer reported {}", path_, chunk,
                  chunk * kChunkBytes, chunk * kChunkBytes + into.size(), hash, expected);
}

Status VerifiedFile::Read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > size() || into.size() > size() - offset) {
    return InvalidArgument("{}: {} bytes from {} of {}", path_, into.size(), offset, size());
  }
  while (!into.empty()) {
    const std::uint64_t chunk = offset / kChunkBytes;
    const std::uint64_t skip = offset % kChunkBytes;
    const std::uint64_t whole = ChunkSize(chunk);
    const auto piece = into.first(std::min<std::size_t>(into.size(), whole - skip));
    if (piece.size() == whole) {
      MUSTER_TRY(ReadChunk(chunk, piece));
    } else {
      const MutexLock lock(mutex_);
      if (kept_chunk_ != chunk) {
        kept_chunk_ = UINT64_MAX;
        kept_.resize(whole);
        MUSTER_TRY(ReadChunk(chunk, kept_));
        kept_chunk_ = chunk;
      }
      std::memcpy(piece.data(), kept_.data() + skip, piece.size());
    }
    offset += piece.size();
    into = into.subspan(piece.size());
  }
  return Ok();
}

Status VerifiedFile::VerifyAll() const {
  std::vector<std::byte> buffer(std::min(kChunkBytes, size()));
  for (std::uint64_t chunk = 0; chunk * kChunkBytes < size(); ++chunk) {
    MUSTER_TRY(ReadChunk(chunk, std::span(buffer).first(ChunkSize(chunk))));
  }
  return Ok();
}

}  // namespace muster::storage
