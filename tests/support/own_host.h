// A process on a host of its own: names as a test writes them, loopback alone, no IPv6.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/net/fd.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::testing {

// Makes this process's host such a one. False: it may not, or the kernel has none.
inline bool MoveToOwnHost(const std::string& hosts_file) {
  const int user = ::geteuid() == 0 ? 0 : CLONE_NEWUSER;
  if (::unshare(user | CLONE_NEWNS | CLONE_NEWNET) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount(hosts_file.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
    return false;
  }
  const net::Fd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::string("lo").copy(loopback.ifr_name, sizeof loopback.ifr_name);
  loopback.ifr_flags = IFF_UP;
  if (::ioctl(any.get(), SIOCSIFFLAGS, &loopback) != 0) return false;
  std::ofstream("/proc/sys/net/ipv6/conf/all/disable_ipv6") << "1";  // where there is any
  const net::Fd v6(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = IN6ADDR_LOOPBACK_INIT;
  return ::bind(v6.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0;
}

// What `run` says in a process whose /etc/hosts has that text: nothing in it is for the test's own
// checks. Nothing, and said: this test has no such host.
inline std::optional<std::string> OnHostWith(const std::string& hosts,
                                             const std::function<std::string()>& run) {
  constexpr int kNoHost = 3;
  constexpr unsigned kLongest_s = 60;
  const TempFolder folder;
  const std::string file = folder.Write("hosts", hosts);
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const net::Fd ear(ends[0]);
  net::Fd mouth(ends[1]);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)::alarm(kLongest_s);
    if (!MoveToOwnHost(file)) ::_exit(kNoHost);
    std::string words;
    try {
      words = run();
    } catch (const std::exception& error) {
      words = error.what();
    } catch (...) {
      words = "an exception";
    }
    (void)!::write(mouth.get(), words.data(), words.size());
    ::_exit(0);
  }
  mouth.Reset();
  std::string words;
  std::array<char, 4096> piece{};
  for (ssize_t got = 0; (got = ::read(ear.get(), piece.data(), piece.size())) > 0;) {
    words.append(piece.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoHost) {
    WARN("left out: this process may not make a host of its own");
    return std::nullopt;
  }
  CHECK(WIFEXITED(status));
  return words;
}

}  // namespace muster::testing
