// The safetensors format: u64 little-endian header size, JSON header, tensors without holes.
// docs/formats/checkpoint.md has a worked example.
//
// Threading: a SafetensorsWriter belongs to one thread; the rest are free functions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/storage/file_system.h"

namespace muster::v1 {
class CheckpointFile;
}

namespace muster::storage {

// A larger header is refused before it is read.
inline constexpr std::uint64_t kMaxHeaderBytes = 32 << 20;

struct TensorEntry {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  // Place in the file, header included.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// The size of the JSON header, from the first 8 bytes. kDataLoss: impossible for this file.
Result<std::uint64_t> ParseHeaderSize(std::span<const std::byte, 8> prefix,
                                      std::uint64_t file_bytes);
// `json` is the whole header, without the 8 bytes before it. kDataLoss says what is wrong: no
// JSON, a repeated key, a hole or an overlap, a size that does not fit its shape or the file.
Result<SafetensorsHeader> ParseHeader(std::span<const std::byte> json, std::uint64_t file_bytes);

// A tensor to come: its bytes are appended later, in the order of declaration.
struct TensorDeclaration {
  std::string key;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
};

// Bytes of a tensor. kInvalidArgument: a negative dimension, a type without a size, overflow.
Result<std::uint64_t> TensorBytes(DType dtype, std::span<const std::int64_t> shape);

// Writes one file under a temporary name and renames it when everything is in it and synced.
// Destruction before Finish() removes the temporary file. A Finish() that fails leaves no new file,
// or the old or the new one in the place of one that was there. After an error only destruction is
// allowed. Lifetime: `files` outlives it.
class SafetensorsWriter {
 public:
  // kResourceExhausted: no room for the whole file. kInvalidArgument: a repeated key, an
  // impossible shape.
  static Result<std::unique_ptr<SafetensorsWriter>> Create(
      FileSystem& files, const std::string& path, std::span<const TensorDeclaration> tensors);
  virtual ~SafetensorsWriter() = default;
  virtual Status Append(std::span<const std::byte> bytes) = 0;
  // kInvalidArgument: fewer bytes were appended than declared.
  virtual Result<v1::CheckpointFile> Finish() = 0;
};

}  // namespace muster::storage
