// A folder for one process or thread at a time, or for several that only look: flock() on the
// folder itself, which leaves nothing behind. The kernel lets go when its holder dies.
#pragma once

#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster {

class FolderLock {
 public:
  enum class How { kAlone, kShared };
  // Waits for others up to `patience`.
  //   kDeadlineExceeded: they have it still.  FromErrno()'s: there is no such folder, or no lock.
  static Result<FolderLock> Take(const std::string& folder, How how, Millis patience);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace muster
