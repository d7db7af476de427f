#include "coordinator/state_folder.h"

#include <cerrno>
#include <filesystem>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace muster::coordinator {

Result<int> HoldStateDirectory(const std::string& directory) {
  std::error_code made;
  std::filesystem::create_directories(directory, made);
  if (made) return FromErrno(made.value(), "make the state directory " + directory);
  if (chmod(directory.c_str(), 0700) != 0) return FromErrno(errno, "chmod " + directory);
  const std::string path = directory + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return FromErrno(errno, "open " + path);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    char pid[32] = {};
    const ssize_t bytes = pread(fd, pid, sizeof pid - 1, 0);
    close(fd);
    if (error != EWOULDBLOCK) return FromErrno(error, "lock " + path);
    return FailedPrecondition(
        "the state directory {} is in use by another coordinator (pid {}): stop it, or choose "
        "another --state-dir",
        directory, bytes > 0 ? pid : "unknown");
  }
  const std::string pid = std::to_string(getpid());
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    const int error = errno;
    close(fd);
    return FromErrno(error, "write " + path);
  }
  return fd;
}

}  // namespace muster::coordinator
