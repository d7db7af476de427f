#include "services/common/notify.h"

#include <cstddef>
#include <cstring>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace muster::services {

bool Notify(const std::string& path, std::string_view state, Millis patience) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof address.sun_path) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());

  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool waits = patience > Millis(0);
  const timeval limit{.tv_sec = patience.count() / 1'000,
                      .tv_usec = patience.count() % 1'000 * 1'000};
  if (waits) (void)::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const ssize_t sent =
      ::sendto(fd, state.data(), state.size(), MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT),
               reinterpret_cast<const sockaddr*>(&address), length);
  ::close(fd);
  return sent == static_cast<ssize_t>(state.size());
}

}  // namespace muster::services
