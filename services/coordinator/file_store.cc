#include "services/coordinator/file_store.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/storage/file_system.h"
#include "common/storage/sha256.h"

namespace muster::coordinator {
namespace {

class FileWriter : public FileStore::Writer {
 public:
  FileWriter(int fd, std::string temporary, std::string path, std::string sha256)
      : fd_(fd),
        temporary_(std::move(temporary)),
        path_(std::move(path)),
        sha256_(std::move(sha256)) {}
  ~FileWriter() override {
    close(fd_);
    if (!committed_) unlink(temporary_.c_str());
  }

  Status Append(std::string_view bytes) override {
    if (bytes_ + bytes.size() > FileStore::kMostBytes) {
      return ResourceExhausted("the file is larger than {} bytes, the most that is taken",
                               FileStore::kMostBytes);
    }
    bytes_ += bytes.size();
    hash_.Add(bytes);
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return FromErrno(errno, "write " + temporary_);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return Ok();
  }

  Result<std::uint64_t> Commit() override {
    const std::string hex = hash_.Hex();
    if (hex != sha256_) {
      return DataLoss("{} bytes arrived with SHA-256 {}; {} was announced: send it again", bytes_,
                      hex, sha256_);
    }
    if (fsync(fd_) != 0) return FromErrno(errno, "sync " + temporary_);
    if (rename(temporary_.c_str(), path_.c_str()) != 0)
      return FromErrno(errno, "rename to " + path_);
    committed_ = true;
    MUSTER_TRY(storage::RealFileSystem().SyncFolder(storage::ParentOf(path_)));
    return bytes_;
  }

 private:
  const int fd_;
  const std::string temporary_;
  const std::string path_;
  const std::string sha256_;
  storage::Sha256 hash_;
  std::uint64_t bytes_ = 0;
  bool committed_ = false;
};

}  // namespace

Result<std::string> FileStore::Path(const std::string& sha256) const {
  if (!storage::IsSha256Hex(sha256)) {
    return InvalidArgument("\"{}\" is no SHA-256: 64 digits 0-9a-f are", sha256.substr(0, 80));
  }
  return directory_ + "/" + sha256;
}

Result<std::string> FileStore::Executable(const std::string& sha256) const {
  MUSTER_TRY_ASSIGN(std::string path, Path(sha256));
  if (!Has(sha256)) {
    return NotFound("{} is gone from the coordinator's state directory: submit the program again",
                    path);
  }
  if (chmod(path.c_str(), S_IRWXU) != 0) return FromErrno(errno, "make executable " + path);
  return path;
}

bool FileStore::Has(const std::string& sha256) const {
  const Result<std::string> path = Path(sha256);
  std::error_code error;
  return path.ok() && std::filesystem::is_regular_file(*path, error);
}

Result<std::unique_ptr<FileStore::Writer>> FileStore::Begin(const std::string& sha256) const {
  MUSTER_TRY_ASSIGN(const std::string path, Path(sha256));
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) return FromErrno(error.value(), "make " + directory_);
  std::string temporary = path + ".XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return FromErrno(errno, "make " + temporary);
  return std::unique_ptr<Writer>(std::make_unique<FileWriter>(fd, temporary, path, sha256));
}

void FileStore::Touch(const std::string& sha256) const {
  const Result<std::string> path = Path(sha256);
  if (path.ok()) (void)utimensat(AT_FDCWD, path->c_str(), nullptr, 0);
}

void FileStore::Look(LaneOffload& disks, const std::string& sha256,
                     std::function<void(bool)> then) const {
  auto there = std::make_shared<bool>(false);
  disks.Run(
      "files",
      [files = *this, sha256, there] {
        files.Touch(sha256);
        *there = files.Has(sha256);
      },
      [there, then = std::move(then)] { then(*there); });
}

std::size_t FileStore::Collect(const std::set<std::string>& used,
                               std::chrono::seconds unused) const {
  const auto now = std::filesystem::file_time_type::clock::now();
  std::size_t removed = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory_, error), end; !error && at != end;
       at.increment(error)) {
    if (used.contains(at->path().filename().string())) continue;
    std::error_code one;
    const auto touched = at->last_write_time(one);
    if (one || now - touched <= unused) continue;
    if (std::filesystem::remove(at->path(), one)) ++removed;
  }
  return removed;
}

}  // namespace muster::coordinator
