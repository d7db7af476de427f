#include "common/base/private_directory.h"

#include <cerrno>

#include <sys/stat.h>
#include <unistd.h>

namespace muster {
namespace {

Result<struct stat> LookAt(const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) return FromErrno(errno, "look at " + path);
  if (S_ISLNK(info.st_mode)) {
    return FailedPrecondition("{} is a link: give the path of the folder itself", path);
  }
  if (!S_ISDIR(info.st_mode)) return FailedPrecondition("{} is no folder", path);
  return info;
}

Status NotOurs(const std::string& path, uid_t owner) {
  return PermissionDenied("{} belongs to user {}, not to you ({})", path, owner, ::geteuid());
}

}  // namespace

Status MakePrivateDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return FromErrno(errno, "make the folder " + path);
  }
  MUSTER_TRY_ASSIGN(const struct stat info, LookAt(path));
  if (info.st_uid != ::geteuid()) return NotOurs(path, info.st_uid);
  if ((info.st_mode & 077) != 0) {
    return PermissionDenied("{} has mode {:o}: others may enter; chmod 700 it, or name another",
                            path, info.st_mode & 0777);
  }
  return Ok();
}

Status RequireOwnDirectory(const std::string& path) {
  MUSTER_TRY_ASSIGN(const struct stat info, LookAt(path));
  if (info.st_uid != ::geteuid() && info.st_uid != 0) return NotOurs(path, info.st_uid);
  const bool sticky = (info.st_mode & S_ISVTX) != 0;  // everybody takes out only their own
  if ((info.st_mode & 022) != 0 && !sticky) {
    return PermissionDenied("{} has mode {:o}: others may change it; chmod 700 it, or name another",
                            path, info.st_mode & 0777);
  }
  return Ok();
}

}  // namespace muster
