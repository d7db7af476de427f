// Ports of loopback that nobody else gets while the object lives, and at which a server can listen.
#pragma once

#include <string>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/catch.h"

namespace muster::testing {

// Sockets that are bound and do not listen: the kernel gives their ports to no one who asks for
// any, and lets who asks for this one listen there (SO_REUSEADDR on both).
class ReservedPorts {
 public:
  explicit ReservedPorts(int count) {
    for (int i = 0; i < count; ++i) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      REQUIRE(fd >= 0);
      fds_.push_back(fd);
      const int on = 1;
      REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof(address);
      REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0);
      REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
      addresses_.push_back("127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
    }
  }
  ~ReservedPorts() {
    for (const int fd : fds_) ::close(fd);
  }
  ReservedPorts(const ReservedPorts&) = delete;
  ReservedPorts& operator=(const ReservedPorts&) = delete;

  // "127.0.0.1:40123"
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  std::vector<int> fds_;
  std::vector<std::string> addresses_;
};

}  // namespace muster::testing
