#include "common/net/stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

#include "common/net/socket_calls.h"

namespace muster::net {
namespace {

// Small parts go into one record together.
constexpr std::size_t kGathered = std::size_t{16} << 10;

}  // namespace

Status Stream::Wait(short events, TimePoint deadline) {
  const int ready = PollUntil(fd_.get(), events, deadline);
  if (ready < 0) return FromErrno(errno, "poll");
  if (ready > 0) return Ok();
  return DeadlineExceeded(
      "no TLS handshake came in time: it is stopped, or speaks plain text and waits for the same "
      "(all of a cluster must have tls-ca, tls-cert and tls-key, or none)");
}

Status Stream::Encrypt(std::unique_ptr<tls::Session> session, TimePoint deadline) {
  session_ = std::move(session);
  for (;;) {
    short wait_for = POLLIN;
    {
      const MutexLock lock(mutex_);
      const Result<bool> done = session_->Handshake();
      int error = 0;
      // Also what tells the peer why it is refused.
      const bool flushed = Flush(error);
      MUSTER_TRY(done.status());
      if (error != 0) return FromErrno(error, "TLS handshake");
      if (flushed && *done) break;
      if (!flushed) wait_for = POLLOUT;
      if (flushed) {
        const ssize_t got = Fill();
        if (got > 0) continue;
        if (got == 0) return Unavailable("it closed the connection in the TLS handshake");
        if (!WouldBlock(errno) && errno != EINTR) return FromErrno(errno, "TLS handshake");
      }
    }
    MUSTER_TRY(Wait(wait_for, deadline));
  }
  return Ok();
}

ssize_t Stream::Fill() {
  const std::span<std::byte> room = session_->Room();
  const ssize_t got = ::recv(fd_.get(), room.data(), room.size(), MSG_DONTWAIT);
  if (got > 0) session_->Came(static_cast<std::size_t>(got));
  return got;
}

bool Stream::Flush(int& error) {
  for (;;) {
    const std::span<const std::byte> waiting = session_->Waiting();
    if (waiting.empty()) return true;
    const ssize_t sent =
        ::send(fd_.get(), waiting.data(), waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      session_->Went(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (!WouldBlock(errno)) error = errno;
    return false;
  }
}

// Like recv(): -1 and errno, EAGAIN when nothing is there. What was decrypted before an error goes
// out first, the error with the next call.
ssize_t Stream::Receive(std::span<std::byte> into) {
  if (session_ == nullptr) return ::recv(fd_.get(), into.data(), into.size(), MSG_DONTWAIT);
  const MutexLock lock(mutex_);
  std::size_t filled = 0;
  while (filled < into.size() && failure_.ok()) {
    if (!session_->has_input()) {
      if (filled > 0) break;
      const ssize_t more = Fill();
      if (more <= 0) return more;
    }
    const Result<std::size_t> got = session_->Read(into.subspan(filled));
    if (!got.ok()) {
      failure_ = got.status();
      break;
    }
    filled += *got;
    if (session_->ended()) break;
    if (*got > 0) continue;
    // Part of a record, or an order to answer (new keys).
    int error = 0;
    (void)Flush(error);
    const ssize_t more = Fill();
    if (more > 0) continue;
    if (filled > 0) break;
    return more;
  }
  if (filled > 0 || failure_.ok()) return static_cast<ssize_t>(filled);
  errno = EPROTO;
  return -1;
}

ssize_t Stream::Receive(std::span<const iovec> parts) {
  if (session_ == nullptr) return ::readv(fd_.get(), parts.data(), static_cast<int>(parts.size()));
  ssize_t all = 0;
  for (const iovec& part : parts) {
    const ssize_t got = Receive({static_cast<std::byte*>(part.iov_base), part.iov_len});
    if (got <= 0) return all > 0 ? all : got;
    all += got;
    if (static_cast<std::size_t>(got) < part.iov_len) break;
  }
  return all;
}

// Small parts are gathered first: each write makes a record of its own, with its own seal.
Result<std::size_t> Stream::Take(std::span<iovec> parts) {
  std::size_t taken = 0;
  std::array<std::byte, kGathered> gathered;
  std::size_t held = 0;
  const auto write = [&](std::span<const std::byte> bytes) -> Result<bool> {
    MUSTER_TRY_ASSIGN(const std::size_t wrote, session_->Write(bytes));
    taken += wrote;
    return wrote == bytes.size();
  };
  for (const iovec& part : parts) {
    std::span<const std::byte> rest(static_cast<const std::byte*>(part.iov_base), part.iov_len);
    while (!rest.empty()) {
      if (held == 0 && rest.size() >= kGathered) {
        MUSTER_TRY_ASSIGN(const bool all, write(rest));
        if (!all) return taken;
        break;
      }
      const std::size_t more = std::min(rest.size(), kGathered - held);
      std::memcpy(gathered.data() + held, rest.data(), more);
      held += more;
      rest = rest.subspan(more);
      if (held < kGathered) continue;
      held = 0;
      MUSTER_TRY_ASSIGN(const bool all, write(gathered));
      if (!all) return taken;
    }
  }
  if (held > 0) MUSTER_TRY(write(std::span(gathered).first(held)).status());
  return taken;
}

ssize_t Stream::Send(std::span<iovec> parts) {
  if (session_ == nullptr) return SendParts(fd_.get(), parts, -1);
  const MutexLock lock(mutex_);
  if (taken_ == 0) {
    Result<std::size_t> taken = failure_.ok() ? Take(parts) : failure_;
    if (!taken.ok()) {
      failure_ = taken.status();
      errno = EPROTO;
      return -1;
    }
    taken_ = *taken;
  }
  int error = 0;
  if (Flush(error)) return static_cast<ssize_t>(std::exchange(taken_, 0));
  errno = error != 0 ? error : EAGAIN;
  return -1;
}

ssize_t Stream::ReceiveWith(std::span<std::byte> into, absl::FunctionRef<void(Fd)> take) {
  return session_ == nullptr ? ReceiveWithDescriptors(fd_.get(), into, take) : Receive(into);
}

ssize_t Stream::SendWith(std::span<iovec> parts, int descriptor) {
  return session_ == nullptr ? SendParts(fd_.get(), parts, descriptor) : Send(parts);
}

Status Stream::failure() const {
  if (session_ == nullptr) return Ok();
  const MutexLock lock(mutex_);
  return failure_;
}

Status Stream::Broken(int error, std::string_view what, const std::string& peer) const {
  const Status had = failure();
  if (!had.ok()) return Annotate(had, peer);
  return Unavailable("{}: {}", peer, Message(FromErrno(error, what)));
}

void Stream::EndWrites() {
  if (session_ != nullptr) {
    const MutexLock lock(mutex_);
    session_->End();
    int error = 0;
    (void)Flush(error);
  }
  (void)::shutdown(fd_.get(), SHUT_WR);
}

void Stream::ShutDown() { (void)::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace muster::net
