#include "services/common/acceptor.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/telemetry/log.h"

namespace muster::services {
namespace {

// How long it rests when the host has no descriptor or no memory for one more connection.
constexpr int kRestMs = 100;

std::uint64_t InodeOf(int fd) {
  struct stat info{};
  return ::fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

std::string PeerOf(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "an unknown peer";
  (void)::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, nullptr,
                      0, NI_NUMERICHOST);
  return host;
}

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::Bind(const Endpoint& endpoint,
                                                 std::size_t most_connections) {
  Endpoint chosen = endpoint;
  MUSTER_TRY_ASSIGN(std::vector<net::Fd> listeners, Listen(chosen));
  net::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return FromErrno(errno, "eventfd");
  return std::unique_ptr<Acceptor>(
      new Acceptor(std::move(chosen), std::move(listeners), std::move(wake), most_connections));
}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Start(Take take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (stopping_.exchange(true)) return;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
  listeners_.clear();
}

void Acceptor::Run() {
  std::vector<pollfd> entries{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const net::Fd& listener : listeners_) {
    entries.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
  }
  while (!stopping_) {
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;
    for (std::size_t i = 1; i < entries.size() && !stopping_; ++i) {
      if ((entries[i].revents & POLLIN) == 0) continue;
      const Status status = AcceptOne(entries[i].fd);
      if (status.ok() || status.code() == StatusCode::kUnavailable) continue;
      if (const auto held = failing_.Ask()) {
        log::Warning("cannot accept connections on {} at the moment: {}; trying again{}",
                     endpoint_.ToString(), Message(status), MoreTimes(*held));
      }
      (void)::poll(entries.data(), 1, kRestMs);
    }
  }
}

Status Acceptor::AcceptOne(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  net::Fd fd(::accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                       SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    const bool host = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (host) return ResourceExhausted("{}", Message(FromErrno(errno, "accept")));
    return Unavailable("{}", Message(FromErrno(errno, "accept")));
  }
  if (open_.size() >= most_ && Full()) {
    if (const auto held = full_.Ask()) {
      log::Warning("refused a connection from {} to {}: {} are open, the most that it takes{}",
                   PeerOf(address, size), endpoint_.ToString(), open_.size(), MoreTimes(*held));
    }
    return Ok();
  }
  const int on = 1;
  (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  open_.push_back({fd.get(), InodeOf(fd.get())});
  take_(fd.Release());
  return Ok();
}

// gRPC does not say when it closes a socket: ask the kernel what the numbers stand for now.
bool Acceptor::Full() {
  std::erase_if(open_, [](const Open& one) { return InodeOf(one.fd) != one.inode; });
  return open_.size() >= most_;
}

}  // namespace muster::services
