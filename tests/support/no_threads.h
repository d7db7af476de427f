// No further thread can be had, whoever runs the test: RLIMIT_NPROC does not bind root.
#pragma once

#include <cstddef>

#include <pthread.h>

#include "tests/support/catch.h"

namespace muster::testing {

// While it lives each new thread of this process asks for a stack larger than the address space,
// which fails as a limit does (EAGAIN). Lifetime: the test's; threads that run stay.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t asked;
    REQUIRE(pthread_getattr_default_np(&asked) == 0);
    REQUIRE(pthread_attr_getstacksize(&asked, &before_) == 0);
    Set(std::size_t{1} << 60);
  }
  ~NoThreads() { Set(before_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  static void Set(std::size_t bytes) {
    pthread_attr_t asked;
    REQUIRE(pthread_getattr_default_np(&asked) == 0);
    REQUIRE(pthread_attr_setstacksize(&asked, bytes) == 0);
    REQUIRE(pthread_setattr_default_np(&asked) == 0);
    pthread_attr_destroy(&asked);
  }

  std::size_t before_ = 0;
};

}  // namespace muster::testing
