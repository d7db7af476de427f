// A disk that is full, for this process alone.
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>

#include <sys/resource.h>

namespace muster::testing {

// No file grows beyond `bytes` while it lives: such a write fails with EFBIG. Throws
// std::system_error where that cannot be had.
class SmallFiles {
 public:
  explicit SmallFiles(std::uint64_t bytes) {
    (void)std::signal(SIGXFSZ, SIG_IGN);
    if (::getrlimit(RLIMIT_FSIZE, &before_) != 0) Fail();
    const rlimit small{bytes, before_.rlim_max};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) Fail();
  }
  ~SmallFiles() { (void)::setrlimit(RLIMIT_FSIZE, &before_); }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  [[noreturn]] static void Fail() {
    throw std::system_error(errno, std::generic_category(), "RLIMIT_FSIZE");
  }

  rlimit before_{};
};

}  // namespace muster::testing
