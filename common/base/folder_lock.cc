#include "common/base/folder_lock.h"

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace muster {

Result<FolderLock> FolderLock::Take(const std::string& folder, How how, Millis patience) {
  FolderLock lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.fd_ < 0) return FromErrno(errno, "open " + folder);
  const int kind = how == How::kAlone ? LOCK_EX : LOCK_SH;
  const auto until = std::chrono::steady_clock::now() + patience;
  while (::flock(lock.fd_, kind | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return FromErrno(errno, "lock " + folder);
    if (std::chrono::steady_clock::now() >= until) {
      return DeadlineExceeded("another process has had {} for {} ms", folder, patience.count());
    }
    std::this_thread::sleep_for(Millis(5));
  }
  return lock;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}
FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

}  // namespace muster
