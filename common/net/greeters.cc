#include "common/net/greeters.h"

#include <algorithm>
#include <system_error>
#include <utility>

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
  if (socket_.valid()) (void)::shutdown(socket_.get(), SHUT_RDWR);
  socket_.Reset();
}

bool Greeters::MakeRoom() {
  const auto is_over = [this](Guest& guest) {
    const MutexLock lock(mutex_);
    return guest.over_;
  };
  const auto gone = [&](Guest& guest) {
    if (!is_over(guest)) return false;
    guest.thread_.join();
    return true;
  };
  std::erase_if(guests_, gone);
  if (guests_.size() < most_) return true;
  if (guests_.size() >= 2 * most_) return false;
  // The first that has not been hung up on.
  auto longest = std::next(guests_.begin(), static_cast<std::ptrdiff_t>(guests_.size() - most_));
  const MutexLock lock(mutex_);
  const auto any_over = [this]() MUSTER_REQUIRES(mutex_) {
    return std::ranges::any_of(guests_, &Guest::over_);
  };
  while (!any_over() && ended_.wait_until(mutex_, longest->begun_ + patience_)) {
  }
  if (!any_over()) longest->HangUp();
  return true;
}

void Greeters::Begin(Accepted accepted, Greet greet) {
  if (!MakeRoom()) return;
  Fd socket(::dup(accepted.fd.get()));
  if (!socket.valid()) return;
  Guest& guest = guests_.emplace_back(*this, std::move(socket));
  try {
    guest.thread_ = std::thread(
        [this, &guest, greet = std::move(greet), taken = std::move(accepted)]() mutable {
          greet(std::move(taken), guest);
          const MutexLock lock(mutex_);
          guest.socket_.Reset();
          guest.over_ = true;
          ended_.notify_one();
        });
  } catch (const std::system_error&) {
    guests_.pop_back();
  }
}

void Greeters::End() {
  for (Guest& guest : guests_) {
    const MutexLock lock(mutex_);
    guest.HangUp();
  }
  for (Guest& guest : guests_) guest.thread_.join();
  guests_.clear();
}

}  // namespace muster::net
