// No file and no socket can be opened any more.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/catch.h"

namespace muster::testing {

// While it lives this process can have no more descriptors than are open now, and `but` more.
// Lifetime: the test's.
class NoMoreDescriptors {
 public:
  explicit NoMoreDescriptors(int but = 0) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    REQUIRE(next >= 0);
    ::close(next);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(next + but);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~NoMoreDescriptors() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;
  NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace muster::testing
