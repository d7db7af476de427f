// No file and no socket can be opened any more.
#pragma once

#include <optional>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
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

// Connects `socket` to a server of this process that has no descriptor for it: nothing is heard of
// the server for `quiet_ms`, and something when it has one. `quiet` is called between the two.
template <class Address, class Quiet>
void KnockWithoutDescriptors(int socket, const Address& address, int quiet_ms, Quiet quiet) {
  std::optional<NoMoreDescriptors> none(std::in_place);
  const int connected =
      ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  pollfd greeting{.fd = socket, .events = POLLIN, .revents = 0};
  const int early = ::poll(&greeting, 1, quiet_ms);
  quiet();
  none.reset();

  REQUIRE(connected == 0);
  CHECK(early == 0);
  CHECK(::poll(&greeting, 1, 20'000) == 1);
}

}  // namespace muster::testing
