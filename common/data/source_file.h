// The files that hold a job's data: which there are, what they are compressed with, their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace muster::data {

enum class Compression : std::uint8_t { kNone, kGzip, kZstd };

// A file as it was when the job opened its data.
struct SourceFile {
  std::string path;
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  // Which file it is, whatever its name leads to later.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  // By its first bytes, not by its name.
  Compression compression = Compression::kNone;
};

// What files may hold: what the readers of this folder can read, or anything, for somebody else.
enum class FileContents : std::uint8_t { kReadHere, kAny };

// The regular files that `patterns` name, in that order, those of one pattern sorted by bytes. '*'
// and '?' match within a folder (not a leading dot).
//   kNotFound: a pattern matches nothing.  kInvalidArgument: no pattern, not a regular file, a
//   file named twice. For kReadHere also: packed as nothing that is read (xz, bzip2, zip...), and
//   kDataLoss: named .gz or .zst, but it is not.
Result<std::vector<SourceFile>> FindFiles(std::span<const std::string> patterns,
                                          FileContents contents = FileContents::kReadHere);

// Read-only bytes of a file. Movable; the bytes stay where they are until it is destroyed.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  //   kNotFound, kPermissionDenied...: from the system.
  static Result<Mapping> Open(const std::string& path);
  // The file that was found, and no other: what is kept of it goes by the size and time of then.
  //   kDataLoss: its size or time has changed since.
  static Result<Mapping> Open(const SourceFile& file);
  // Maps the open file `fd` and owns it from now on: locks taken on it live as long as the mapping.
  static Result<Mapping> Adopt(int fd, const std::string& path);

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace muster::data
