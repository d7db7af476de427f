// systemd's end of NOTIFY_SOCKET.
#pragma once

#include <chrono>
#include <cstring>
#include <string>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::services {

class NotifySocket {
 public:
  NotifySocket() : path_(directory_ / "notify") {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  ~NotifySocket() { ::close(fd_); }
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  const std::string& path() const { return path_; }
  // The next message; empty: none came within the time.
  std::string Next(std::chrono::milliseconds within = std::chrono::seconds(20)) {
    pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, static_cast<int>(within.count())) <= 0) return "";
    char text[512];
    const ssize_t got = ::recv(fd_, text, sizeof text, 0);
    return got <= 0 ? "" : std::string(text, static_cast<std::size_t>(got));
  }
  // The first that begins so, whatever comes before.
  std::string NextLike(const std::string& begin) {
    for (std::string text = Next(); !text.empty(); text = Next()) {
      if (text.starts_with(begin)) return text;
    }
    return "";
  }

 private:
  const testing::TempFolder directory_;
  const std::string path_;
  int fd_ = -1;
};

}  // namespace muster::services
