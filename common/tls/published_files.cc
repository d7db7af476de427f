#include "common/tls/published_files.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace muster::tls {
namespace {

Result<int> InMemory(const std::string& text) {
  const int fd = ::memfd_create("muster-tls", MFD_CLOEXEC);
  if (fd < 0) return FromErrno(errno, "make a file in memory");
  const ssize_t wrote = ::write(fd, text.data(), text.size());
  if (wrote == static_cast<ssize_t>(text.size()) && ::fchmod(fd, 0400) == 0) return fd;
  const Status status = FromErrno(wrote < 0 ? errno : ENOSPC, "write a file in memory");
  (void)::close(fd);
  return status;
}

}  // namespace

PublishedFiles::~PublishedFiles() {
  for (const int fd : fds_) {
    if (fd >= 0) (void)::close(fd);
  }
}

Status PublishedFiles::Publish(const Contents& contents) {
  std::array<int, 3> made{-1, -1, -1};
  Status status = Ok();
  // The key last: who compares times before and after has seen the certificate change.
  const std::array<const std::string*, 3> texts{&contents.ca, &contents.certificate, &contents.key};
  for (std::size_t i = 0; i < made.size() && status.ok(); ++i) {
    const Result<int> fd = InMemory(*texts[i]);
    if (fd.ok()) made[i] = *fd;
    status = fd.status();
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (made[i] < 0) continue;
    if (status.ok() && fds_[i] < 0) {
      fds_[i] = std::exchange(made[i], -1);
    } else if (status.ok() && ::dup3(made[i], fds_[i], O_CLOEXEC) < 0) {
      status = FromErrno(errno, "replace a file in memory");
    }
    if (made[i] >= 0) (void)::close(made[i]);
  }
  return status;
}

std::string PublishedFiles::PathOf(std::size_t file) const {
  return fmt::format("/proc/self/fd/{}", fds_[file]);
}

}  // namespace muster::tls
