#include "common/base/whole_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

namespace muster {
namespace {

constexpr std::size_t kPiece = std::size_t{64} << 10;

Result<std::string> ReadAll(int fd, const std::string& path, std::size_t most) {
  std::string text;
  for (;;) {
    const std::size_t had = text.size();
    if (had > most) {
      return ResourceExhausted("{} has more than {} bytes, the most that is read of it", path,
                               most);
    }
    text.resize(std::min(had + kPiece, most + 1));
    const ssize_t got = ::read(fd, text.data() + had, text.size() - had);
    if (got < 0 && errno != EINTR) return FromErrno(errno, "read " + path);
    text.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return text;
  }
}

// A name lasts when its folder is on the disk.
Status SyncFolderOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const int error = SyncFolder(parent.empty() ? "." : parent);
  // Who may put files into a folder need not be allowed to read it.
  return error == 0 || error == EACCES ? Ok() : FromErrno(error, "write " + path);
}

bool IsOfTheSystem(const std::string& path) {
  const std::string whole = std::filesystem::path(path).lexically_normal().string();
  return whole.starts_with("/proc/") ||
         (whole.starts_with("/dev/") && !whole.starts_with("/dev/shm/"));
}

}  // namespace

Result<std::string> ReadWholeFile(const std::string& path, std::size_t most) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FromErrno(errno, "read " + path);
  Result<std::string> text = ReadAll(fd, path, most);
  (void)::close(fd);
  return text;
}

std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Result<std::string> PlaceOfFile(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return InvalidArgument("write: a file with an empty name");
  std::error_code error;
  const bool link = fs::is_symlink(fs::symlink_status(path, error));
  const fs::path behind = link ? fs::canonical(path, error) : fs::path(path);
  // A link to a pipe, or to nothing, has no path behind it: then its own is taken.
  const fs::path place = behind.empty() ? fs::path(path) : behind;
  const fs::file_status there = fs::status(place, error);
  if (fs::is_directory(there)) return InvalidArgument("write {}: a folder is there", path);
  if (fs::is_other(there)) {
    return InvalidArgument("write {}: a device, a pipe or a socket is there", path);
  }
  return place.string();
}

Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode) {
  // A link itself is replaced: another user may have put it there. Not the system's own, such as
  // /dev/stdout, which all of its processes use.
  MUSTER_TRY(PlaceOfFile(path).status());
  if (IsOfTheSystem(path)) {
    return InvalidArgument(
        "write {}: that is the system's name for what a process has open, which "
        "a file must not replace; give the path of a file",
        path);
  }
  const std::string staged = fmt::format("{}.{}.new", path, ::getpid());
  // Not through what somebody else has put under that name.
  (void)::unlink(staged.c_str());
  const int fd = ::open(staged.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return FromErrno(errno, "write " + path);
  Status status = WriteAll(fd, text, path);
  if (status.ok() && ::fsync(fd) != 0) status = FromErrno(errno, "write " + path);
  (void)::close(fd);
  if (status.ok() && std::rename(staged.c_str(), path.c_str()) != 0) {
    status = FromErrno(errno, "write " + path);
  }
  if (!status.ok()) {
    (void)::unlink(staged.c_str());
    return status;
  }
  return SyncFolderOf(path);
}

int SyncFolder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  // EINVAL: it has no such call for folders, as SMB's before Linux 6.9.
  const int error = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  (void)::close(fd);
  return error;
}

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FromErrno(errno, "write " + path);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return Ok();
}

}  // namespace muster
