#include "common/storage/file_system.h"

#include <cerrno>
#include <filesystem>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/whole_file.h"

namespace muster::storage {
namespace {

// Once this much is written, the kernel is asked to start writing it out, so that Sync() at the end
// finds little left to do.
constexpr std::uint64_t kWriteBehindBytes = 32 << 20;

// A mount over a network fails with errors of its connection (ETIMEDOUT, ENOTCONN).
Status DiskError(int error, std::string_view what) {
  const Status status = FromErrno(error, what);
  return status.code() == StatusCode::kUnavailable ? Unknown("{}", Message(status)) : status;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class RealWritableFile : public WritableFile {
 public:
  RealWritableFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  Status Reserve(std::uint64_t bytes) override {
    if (bytes == 0) return Ok();
    // Not posix_fallocate(): where the file system cannot reserve, that one writes zeros instead.
    if (::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0) return Ok();
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR) return Ok();
    return DiskError(errno, fmt::format("reserve {} bytes for {}", bytes, path_));
  }

  Status Append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return DiskError(errno, fmt::format("write {} at {}", path_, written_));
      written_ += static_cast<std::uint64_t>(n);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    if (written_ - started_ >= kWriteBehindBytes) {
      // A hint: its failure shows in Sync().
      (void)::sync_file_range(fd_.get(), static_cast<off_t>(started_),
                              static_cast<off_t>(written_ - started_), SYNC_FILE_RANGE_WRITE);
      started_ = written_;
    }
    return Ok();
  }

  Status Sync() override {
    if (::fdatasync(fd_.get()) == 0) return Ok();
    return DiskError(errno, "fdatasync " + path_);
  }

  Status Close() override {
    if (::close(fd_.Release()) == 0) return Ok();
    return DiskError(errno, "close " + path_);
  }

 private:
  Descriptor fd_;
  const std::string path_;
  std::uint64_t written_ = 0;
  std::uint64_t started_ = 0;
};

class RealReadableFile : public ReadableFile {
 public:
  RealReadableFile(int fd, std::string path, std::uint64_t size)
      : fd_(fd), path_(std::move(path)), size_(size) {}

  std::uint64_t size() const override { return size_; }

  Status Read(std::uint64_t offset, std::span<std::byte> into) const override {
    while (!into.empty()) {
      const ssize_t n = ::pread(fd_.get(), into.data(), into.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return DiskError(errno, fmt::format("read {} at {}", path_, offset));
      if (n == 0)
        return DataLoss("{} ends at byte {}; {} more were expected", path_, offset, into.size());
      offset += static_cast<std::uint64_t>(n);
      into = into.subspan(static_cast<std::size_t>(n));
    }
    return Ok();
  }

 private:
  const Descriptor fd_;
  const std::string path_;
  const std::uint64_t size_;
};

class RealFiles : public FileSystem {
 public:
  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return DiskError(errno, "create " + path);
    return std::make_unique<RealWritableFile>(fd, path);
  }

  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    // O_NONBLOCK: a fifo in the place of a file must not hold us up.
    Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) return DiskError(errno, "open " + path);
    struct stat info = {};
    if (::fstat(fd.get(), &info) != 0) return DiskError(errno, "fstat " + path);
    if (!S_ISREG(info.st_mode)) return DataLoss("{} is not a plain file", path);
    return std::make_unique<RealReadableFile>(fd.Release(), path,
                                              static_cast<std::uint64_t>(info.st_size));
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return Ok();
    return DiskError(errno, fmt::format("rename {} to {}", from, to));
  }

  Status RenameNew(const std::string& from, const std::string& to) override {
    if (::link(from.c_str(), to.c_str()) == 0) return Remove(from);
    const int error = errno;
    if (error != EPERM && error != EOPNOTSUPP && error != ENOSYS) {
      return DiskError(error, fmt::format("link {} to {}", from, to));
    }
    // No hard links here: not quite so strict.
    MUSTER_TRY_ASSIGN(const bool there, Exists(to));
    if (there) return DiskError(EEXIST, fmt::format("rename {} to {}", from, to));
    return Rename(from, to);
  }

  Status SyncFolder(const std::string& path) override {
    // Where that is no call of its file system, a checkpoint there is worth more than none.
    const int error = muster::SyncFolder(path);
    return error == 0 ? Ok() : DiskError(error, "fsync folder " + path);
  }

  Status Remove(const std::string& path) override {
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) return Ok();
    return DiskError(errno, "remove " + path);
  }

  Status RemoveTree(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return DiskError(error.value(), "remove " + path);
    return Ok();
  }

  Status MakeFolders(const std::string& path) override {
    std::vector<std::string> missing;
    for (std::string at = path;; at = ParentOf(at)) {
      MUSTER_TRY_ASSIGN(const bool there, Exists(at));
      if (there) break;
      missing.push_back(at);
    }
    for (auto at = missing.rbegin(); at != missing.rend(); ++at) {
      // Another server may have made it just now.
      if (::mkdir(at->c_str(), 0755) != 0 && errno != EEXIST) {
        return DiskError(errno, "make folder " + *at);
      }
      MUSTER_TRY(SyncFolder(ParentOf(*at)));
    }
    return Ok();
  }

  Result<bool> Exists(const std::string& path) override {
    struct stat info = {};
    if (::stat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return DiskError(errno, "look at " + path);
  }

  bool IsLink(const std::string& path) override {
    struct stat info = {};
    return ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
  }

  Result<std::vector<std::string>> List(const std::string& folder) override {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
    if (error) return DiskError(error.value(), "list folder " + folder);
    return names;
  }
};

}  // namespace

FileSystem& RealFileSystem() {
  static RealFiles files;
  return files;
}

std::string JoinPath(const std::string& folder, const std::string& name) {
  if (folder.empty() || folder.back() == '/') return folder + name;
  return folder + "/" + name;
}

std::string TemporaryName(const std::string& path) {
  std::random_device random;
  return fmt::format("{}.{:08x}{:08x}.tmp", path, random(), random());
}

std::string ParentOf(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  const std::size_t slash = path.rfind('/', end);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace muster::storage
