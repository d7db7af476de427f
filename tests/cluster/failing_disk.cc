// A disk that fails, for unmodified programs (LD_PRELOAD): the file that MUSTER_FAILING_DISK names
// says what, and is read at each call, so that a test turns failures on and off in a running
// daemon. A line is
//   WHO CALL ERRNO FOLDER
// WHO: a pid, a program's name, or *. CALL: fdatasync, fsync, pread, opendir, or change (creating,
// making folders, renaming, linking, removing). ERRNO: a number, or hang: the call does not return
// while the line stands. FOLDER: what lies below it fails. Or CALL is statfs, and ERRNO what kind
// of file system it says that is (f_type).
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace {

// By system call: open() and read() here are our own, or a sanitizer's.
std::size_t ReadRules(char* into, std::size_t size) {
  const char* const path = std::getenv("MUSTER_FAILING_DISK");
  if (path == nullptr) return 0;
  const long fd = ::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const long bytes = ::syscall(SYS_read, fd, into, size - 1);
  (void)::syscall(SYS_close, fd);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

bool IsUs(const char* who) {
  if (std::strcmp(who, "*") == 0) return true;
  if (std::strcmp(who, program_invocation_short_name) == 0) return true;
  return std::atoi(who) == ::getpid();
}

bool IsBelow(const char* path, const char* folder) {
  const std::size_t length = std::strlen(folder);
  return std::strncmp(path, folder, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

// The error that `call` has on `path` now; 0: none.
int Fault(const char* call, const char* path) {
  while (true) {
    char rules[4096];
    rules[ReadRules(rules, sizeof rules)] = '\0';
    bool hangs = false;
    char* rest = rules;
    while (const char* const line = ::strsep(&rest, "\n")) {
      char who[64], what[32], error[32], folder[PATH_MAX];
      if (std::sscanf(line, "%63s %31s %31s %4095s", who, what, error, folder) != 4) continue;
      if (std::strcmp(what, call) != 0 || !IsUs(who) || !IsBelow(path, folder)) continue;
      hangs = std::strcmp(error, "hang") == 0;
      if (!hangs) return std::atoi(error);
    }
    if (!hangs) return 0;
    ::usleep(20'000);
  }
}

int FaultOf(const char* call, int fd) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const long size = ::syscall(SYS_readlink, link, path, sizeof path - 1);
  if (size <= 0) return 0;
  path[size] = '\0';
  return Fault(call, path);
}

// The next function of this name: libc's.
template <class Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// Sets errno; true: the call fails.
bool Fails(int error) {
  if (error != 0) errno = error;
  return error != 0;
}

bool OpenFails(const char* path, int flags) {
  if ((flags & O_DIRECTORY) != 0) return Fails(Fault("opendir", path));
  return (flags & O_CREAT) != 0 && Fails(Fault("change", path));
}

mode_t ModeOf(int flags, va_list& arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int fdatasync(int fd) {
  if (Fails(FaultOf("fdatasync", fd))) return -1;
  return Real<int (*)(int)>("fdatasync")(fd);
}

int fsync(int fd) {
  if (Fails(FaultOf("fsync", fd))) return -1;
  return Real<int (*)(int)>("fsync")(fd);
}

ssize_t pread(int fd, void* into, size_t size, off_t offset) {
  if (Fails(FaultOf("pread", fd))) return -1;
  return Real<ssize_t (*)(int, void*, size_t, off_t)>("pread")(fd, into, size, offset);
}

ssize_t pread64(int fd, void* into, size_t size, off64_t offset) {
  if (Fails(FaultOf("pread", fd))) return -1;
  return Real<ssize_t (*)(int, void*, size_t, off64_t)>("pread64")(fd, into, size, offset);
}

int statfs(const char* path, struct statfs* info) {
  const int done = Real<int (*)(const char*, struct statfs*)>("statfs")(path, info);
  if (const int type = Fault("statfs", path); type != 0) info->f_type = type;
  return done;
}

DIR* opendir(const char* path) {
  if (Fails(Fault("opendir", path))) return nullptr;
  return Real<DIR* (*)(const char*)>("opendir")(path);
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  if (OpenFails(path, flags)) return -1;
  return Real<int (*)(const char*, int, ...)>("open")(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  if (OpenFails(path, flags)) return -1;
  return Real<int (*)(const char*, int, ...)>("open64")(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  if (OpenFails(path, flags)) return -1;
  return Real<int (*)(int, const char*, int, ...)>("openat")(folder, path, flags, mode);
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  if (OpenFails(path, flags)) return -1;
  return Real<int (*)(int, const char*, int, ...)>("openat64")(folder, path, flags, mode);
}

int mkdir(const char* path, mode_t mode) {
  if (Fails(Fault("change", path))) return -1;
  return Real<int (*)(const char*, mode_t)>("mkdir")(path, mode);
}

int rename(const char* from, const char* to) {
  if (Fails(Fault("change", to))) return -1;
  return Real<int (*)(const char*, const char*)>("rename")(from, to);
}

int link(const char* from, const char* to) {
  if (Fails(Fault("change", to))) return -1;
  return Real<int (*)(const char*, const char*)>("link")(from, to);
}

int unlink(const char* path) {
  if (Fails(Fault("change", path))) return -1;
  return Real<int (*)(const char*)>("unlink")(path);
}

}  // extern "C"
