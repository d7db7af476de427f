#include "services/worker/file_cache.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder_lock.h"
#include "common/base/number_in.h"
#include "common/base/whole_file.h"
#include "common/base/words.h"
#include "common/storage/sha256.h"
#include "common/telemetry/log.h"

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

// Between processes that share a folder: who collects has it alone, so that a file whose time was
// renewed under it is seen as it is now. One that stands still with it holds nobody up for long.
constexpr std::chrono::seconds kPatience{1};

// "<name>.<pid>.tmp" of a process that fetches no longer: it has ended, or it is this one, which
// fetches on the thread that collects.
bool IsLeftOver(const std::string& name) {
  constexpr std::string_view kEnd = ".tmp";
  if (!name.ends_with(kEnd)) return false;
  const std::string stem = name.substr(0, name.size() - kEnd.size());
  const auto pid = NumberIn<pid_t>(std::string_view(stem).substr(stem.rfind('.') + 1));
  if (!pid || *pid <= 0) return false;
  return *pid == ::getpid() || (::kill(*pid, 0) != 0 && errno == ESRCH);
}

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
    return WriteAll(file.fd(), bytes, staged);
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
  {
    // Also without the lock: nobody takes away what was used within a day.
    const auto lock = FolderLock::Take(directory_, FolderLock::How::kShared, kPatience);
    (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // it may not be there
  }
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

std::size_t FileCache::Collect(std::chrono::system_clock::time_point now) const {
  const auto lock = FolderLock::Take(directory_, FolderLock::How::kAlone, kPatience);
  if (!lock.ok()) return 0;  // the next time
  std::size_t removed = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory_, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    struct stat info{};
    if (!storage::IsSha256Hex(name.substr(0, name.find('.'))) ||
        ::lstat(at->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
      continue;
    }
    const bool unused = now - std::chrono::system_clock::from_time_t(info.st_mtime) > kUnused;
    if (!unused && !IsLeftOver(name)) continue;
    std::error_code one;
    if (std::filesystem::remove(at->path(), one)) ++removed;
  }
  return removed;
}

void KeepTidy(Scheduler& files, const FileCache& cache) {
  files.Post([&files, &cache] {
    if (const std::size_t gone = cache.Collect(files.WallNow()); gone > 0) {
      log::Info("removed {} of the cache that nobody has asked for in {} h", Counted(gone, "file"),
                FileCache::kUnused.count());
    }
    (void)files.RunAfter(std::chrono::hours(1), [&files, &cache] { KeepTidy(files, cache); });
  });
}

}  // namespace muster::services
