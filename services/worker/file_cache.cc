#include "services/worker/file_cache.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "common/storage/sha256.h"
#include "common/storage/write_all.h"

namespace muster::services {
namespace {

constexpr std::uint64_t kLargest = 256ULL << 20;

class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0600)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// Whether the file is there and has that hash.
bool IsIntact(const std::string& path, const std::string& sha256) {
  const File file(path, O_RDONLY);
  if (file.fd() < 0) return false;
  storage::Sha256 hash;
  std::string buffer(1 << 20, '\0');
  ssize_t got = 0;
  while ((got = ::read(file.fd(), buffer.data(), buffer.size())) > 0) {
    hash.Add({buffer.data(), static_cast<std::size_t>(got)});
  }
  return got == 0 && hash.Hex() == sha256;
}

Status Download(const FileCache::Fetch& fetch, const std::string& sha256, const std::string& staged,
                mode_t mode) {
  const File file(staged, O_WRONLY | O_CREAT | O_TRUNC, mode);
  if (file.fd() < 0) return FromErrno(errno, fmt::format("create {}", staged));
  storage::Sha256 hash;
  std::uint64_t total = 0;
  MUSTER_TRY(fetch(sha256, [&](const std::string& bytes) -> Status {
    total += bytes.size();
    if (total > kLargest) {
      return ResourceExhausted("file {}: more than {} bytes", sha256, kLargest);
    }
    hash.Add(bytes);
    return storage::WriteAll(file.fd(), bytes, staged);
  }));
  const std::string got = hash.Hex();
  if (got != sha256) {
    return DataLoss("file {}: what arrived ({} bytes) has SHA-256 {}", sha256, total, got);
  }
  return Ok();
}

}  // namespace

Result<std::string> FileCache::Get(const std::string& sha256) const {
  if (!storage::IsSha256Hex(sha256)) {
    return InvalidArgument("\"{}\" is no SHA-256 in lower-case hex", sha256);
  }
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) return FromErrno(error.value(), fmt::format("folder {}", directory_));
  const bool program = use_ == Use::kProgram;
  const std::string path = fmt::format("{}/{}{}", directory_, sha256, program ? "" : ".pt");
  if (IsIntact(path, sha256)) return path;

  const std::string staged = fmt::format("{}.{}.tmp", path, ::getpid());
  Status status = Download(fetch_, sha256, staged, program ? 0700 : 0600);
  if (status.ok() && std::rename(staged.c_str(), path.c_str()) != 0) {
    status = FromErrno(errno, fmt::format("rename {} to {}", staged, path));
  }
  if (status.ok()) return path;
  std::remove(staged.c_str());
  return status;
}

}  // namespace muster::services
