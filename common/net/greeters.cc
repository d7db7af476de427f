#include "common/net/greeters.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace muster::net {

bool Greeters::Guest::Keep() {
  const MutexLock lock(greeters_.mutex_);
  const bool here = socket_.valid();
  socket_.Reset();
  return here;
}

void Greeters::Guest::HangUp() {
  const MutexLock lock(greeters_.mutex_);
  if (socket_.valid()) (void)::shutdown(socket_.get(), SHUT_RDWR);
  socket_.Reset();
}

void Greeters::Guest::Leave() {
  const MutexLock lock(greeters_.mutex_);
  socket_.Reset();
  over_ = true;
  greeters_.ended_.notify_one();
}

bool Greeters::Guest::IsOver() {
  const MutexLock lock(greeters_.mutex_);
  return over_;
}

bool Greeters::MakeRoom() {
  const auto gone = [](Guest& guest) {
    if (!guest.IsOver()) return false;
    guest.thread_.join();
    return true;
  };
  std::erase_if(guests_, gone);
  if (guests_.size() < most_) return true;
  if (guests_.size() >= 2 * most_) return false;
  // The first that has not been hung up on.
  auto longest = std::next(guests_.begin(), static_cast<std::ptrdiff_t>(guests_.size() - most_));
  MutexLock lock(mutex_);
  const auto any_over = [this]() MUSTER_REQUIRES(mutex_) {
    return std::ranges::any_of(guests_, &Guest::over_);
  };
  while (!any_over() && ended_.wait_until(mutex_, longest->begun_ + patience_)) {
  }
  const bool room = any_over();
  lock.unlock();
  if (!room) longest->HangUp();
  return true;
}

void Greeters::Begin(Accepted accepted, Greet greet) {
  if (!MakeRoom()) return;
  // A process that is started meanwhile must not keep the guest's connection.
  Fd socket(::fcntl(accepted.fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!socket.valid()) return;
  Guest& guest = guests_.emplace_back(*this, std::move(socket));
  try {
    guest.thread_ =
        std::thread([&guest, greet = std::move(greet), taken = std::move(accepted)]() mutable {
          greet(std::move(taken), guest);
          guest.Leave();
        });
  } catch (const std::system_error&) {
    guests_.pop_back();
  }
}

void Greeters::End() {
  for (Guest& guest : guests_) guest.HangUp();
  for (Guest& guest : guests_) guest.thread_.join();
  guests_.clear();
}

}  // namespace muster::net
