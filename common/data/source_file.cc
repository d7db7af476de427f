#include "common/data/source_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/host_name.h"
#include "common/base/wall_time.h"

namespace muster::data {
namespace {

bool EndsWith(std::string_view text, std::string_view end) { return text.ends_with(end); }

bool IsPattern(std::string_view path) { return path.find_first_of("*?") != std::string_view::npos; }

// glob(3) knows brackets and backslashes too; here they are ordinary characters of a name.
std::string Escaped(std::string_view pattern) {
  std::string escaped;
  for (const char c : pattern) {
    if (c == '[' || c == ']' || c == '\\') escaped.push_back('\\');
    escaped.push_back(c);
  }
  return escaped;
}

Result<std::vector<std::string>> Matches(const std::string& pattern) {
  if (!IsPattern(pattern)) return std::vector<std::string>{pattern};
  glob_t found = {};
  const int rc = ::glob(Escaped(pattern).c_str(), GLOB_NOSORT | GLOB_MARK, nullptr, &found);
  std::vector<std::string> paths;
  for (std::size_t i = 0; rc == 0 && i < found.gl_pathc; ++i) {
    std::string path = found.gl_pathv[i];
    if (!path.ends_with('/')) paths.push_back(std::move(path));
  }
  ::globfree(&found);
  if (rc == GLOB_NOSPACE) return ResourceExhausted("{}: out of memory while matching", pattern);
  if (paths.empty()) {
    return NotFound("{} on host {}: no file matches; is the data on this host?", pattern,
                    HostName());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

struct Packed {
  std::string_view name;
  std::string_view remedy;
};

// What a file is packed in, if it is something that is not read here: by first bytes that no data
// begins with, so that a plain file is not taken for one.
std::optional<Packed> PackedAs(std::string_view head) {
  using namespace std::string_view_literals;
  if (head.starts_with("\xFD\x37zXZ\0"sv)) return Packed{"an xz file", "xz -d"};
  if (head.starts_with("BZh") && head.size() > 4 && head.substr(4).starts_with("1AY&SY")) {
    return Packed{"a bzip2 file", "bzip2 -d"};
  }
  // Where a zip archive has a version, a TFRecord has the zeros of its length.
  if (head.starts_with("PK\x03\x04") && head.size() > 4 && head[4] != '\0') {
    return Packed{"a zip archive", "unzip"};
  }
  if (head.starts_with("7z\xBC\xAF\x27\x1C")) return Packed{"a 7z archive", "7z x"};
  if (head.starts_with("\x04\x22\x4D\x18")) return Packed{"an lz4 file", "lz4 -d"};
  return std::nullopt;
}

// In nanoseconds.
std::int64_t TimeOf(const struct stat& info) {
  return info.st_mtim.tv_sec * 1'000'000'000LL + info.st_mtim.tv_nsec;
}

Result<int> OpenToRead(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FromErrno(errno, fmt::format("{} on host {}", path, HostName()));
  return fd;
}

constexpr std::size_t kHead = 16;

// Up to kHead bytes at `offset`; nullopt when they cannot be read.
std::optional<std::string> HeadAt(int fd, std::uint64_t offset) {
  std::string head(kHead, '\0');
  const ::ssize_t got = ::pread(fd, head.data(), head.size(), static_cast<::off_t>(offset));
  if (got < 0) return std::nullopt;
  head.resize(static_cast<std::size_t>(got));
  return head;
}

Compression DetectCompression(int fd, std::string head) {
  using namespace std::string_view_literals;
  if (head.starts_with("\x1f\x8b\x08")) return Compression::kGzip;
  // pzstd puts a frame to be skipped before each of its frames: 8 bytes with its size, and that
  // much.
  std::uint64_t offset = 0;
  while (head.size() >= 8 && (head[0] & 0xF0) == 0x50 && head.substr(1, 3) == "\x2A\x4D\x18") {
    std::uint32_t size = 0;
    std::memcpy(&size, head.data() + 4, sizeof size);
    // In 64 bits: in 32 a frame of the largest size would lead back to where it is.
    offset += std::uint64_t{8} + size;
    head = HeadAt(fd, offset).value_or("");
  }
  return head.starts_with("\x28\xb5\x2f\xfd"sv) ? Compression::kZstd : Compression::kNone;
}

Result<SourceFile> Inspect(const std::string& path, FileContents contents) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FromErrno(errno, fmt::format("{} on host {}", path, HostName()));
  struct stat info = {};
  std::optional<std::string> head;
  Compression compression = Compression::kNone;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) head = HeadAt(fd, 0);
  if (head.has_value()) compression = DetectCompression(fd, *head);
  ::close(fd);
  if (S_ISDIR(info.st_mode)) {
    return InvalidArgument("{} on host {}: a folder; to read all of its files, write {}/*", path,
                           HostName(), path);
  }
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument("{} on host {}: not a regular file", path, HostName());
  }
  if (!head.has_value()) return DataLoss("{} on host {}: cannot be read", path, HostName());

  SourceFile file{.path = path, .size = static_cast<std::uint64_t>(info.st_size)};
  file.mtime_ns = TimeOf(info);
  file.device = info.st_dev;
  file.inode = info.st_ino;
  file.compression = compression;
  if (contents == FileContents::kAny) return file;
  if (const auto packed = PackedAs(*head); packed.has_value()) {
    return InvalidArgument(
        "{} on host {}: this is {}; decompress it first ({}): plain, gzip and "
        "zstd are read",
        path, HostName(), packed->name, packed->remedy);
  }
  if (EndsWith(path, ".gz") && file.compression != Compression::kGzip) {
    return DataLoss("{} on host {}: its name ends in .gz, but it does not begin as gzip does", path,
                    HostName());
  }
  if (EndsWith(path, ".zst") && file.compression != Compression::kZstd) {
    return DataLoss("{} on host {}: its name ends in .zst, but it does not begin as zstd does",
                    path, HostName());
  }
  return file;
}

}  // namespace

Result<std::vector<SourceFile>> FindFiles(std::span<const std::string> patterns,
                                          FileContents contents) {
  if (patterns.empty()) return InvalidArgument("no files given");
  std::vector<SourceFile> files;
  std::map<std::string, std::string> seen;  // by where its name leads: the name
  for (const std::string& pattern : patterns) {
    if (pattern.empty()) return InvalidArgument("an empty path in the list of files");
    MUSTER_TRY_ASSIGN(const std::vector<std::string> paths, Matches(pattern));
    for (const std::string& path : paths) {
      MUSTER_TRY_ASSIGN(SourceFile file, Inspect(path, contents));
      std::error_code gone;
      const std::filesystem::path target = std::filesystem::canonical(path, gone);
      const auto [first, added] = seen.try_emplace(gone ? path : target.string(), path);
      if (!added) {
        return InvalidArgument(
            "{} {}; its records would be used twice in an epoch", path,
            first->second == path ? "is named twice" : "is the same file as " + first->second);
      }
      files.push_back(std::move(file));
    }
  }
  return files;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

Result<Mapping> Mapping::Open(const std::string& path) {
  MUSTER_TRY_ASSIGN(const int fd, OpenToRead(path));
  MUSTER_TRY_ASSIGN(Mapping mapping, Adopt(fd, path));
  ::close(std::exchange(mapping.fd_, -1));
  return mapping;
}

Result<Mapping> Mapping::Open(const SourceFile& file) {
  MUSTER_TRY_ASSIGN(const int fd, OpenToRead(file.path));
  MUSTER_TRY_ASSIGN(Mapping mapping, Adopt(fd, file.path));
  // By the descriptor: its name may lead to another file by now.
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return FromErrno(errno, fmt::format("stat {}", file.path));
  ::close(std::exchange(mapping.fd_, -1));
  if (mapping.size_ != file.size) {
    return DataLoss("{} on host {}: changed from {} to {} bytes while the job opened it", file.path,
                    HostName(), file.size, mapping.size_);
  }
  if (TimeOf(info) != file.mtime_ns) {
    return DataLoss("{} on host {}: changed while the job opened it: last written {}, {} before",
                    file.path, HostName(), UtcTextOfNanos(TimeOf(info)),
                    UtcTextOfNanos(file.mtime_ns));
  }
  return mapping;
}

Result<Mapping> Mapping::Adopt(int fd, const std::string& path) {
  Mapping mapping;
  mapping.fd_ = fd;
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return FromErrno(errno, fmt::format("stat {}", path));
  if (info.st_size == 0) return mapping;
  const auto size = static_cast<std::size_t>(info.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return FromErrno(errno, fmt::format("mmap {}", path));
  mapping.data_ = static_cast<const std::byte*>(data);
  mapping.size_ = size;
  return mapping;
}

}  // namespace muster::data
