#include "cli/interrupt.h"

#include <csignal>
#include <utility>

#include <pthread.h>
#include <time.h>
#include <unistd.h>

namespace muster::cli {
namespace {

constexpr long kLookAroundNs = 100'000'000;  // how long the end of the program may wait for us

sigset_t Signals(bool hang_up) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (hang_up) sigaddset(&set, SIGHUP);
  return set;
}

// Once blocked it would be seen all the same.
bool Ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Interrupt::Interrupt(bool hang_up) : hang_up_(hang_up && !Ignored(SIGHUP)) {
  const sigset_t set = Signals(hang_up_);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { Watch(); });
}

Interrupt::~Interrupt() {
  done_ = true;
  thread_.join();
}

void Interrupt::OnRaise(std::function<void()> then) {
  const MutexLock lock(mutex_);
  then_ = std::move(then);
  if (raised() && then_) then_();
}

void Interrupt::Watch() {
  const sigset_t set = Signals(hang_up_);
  while (!done_) {
    const timespec limit{0, kLookAroundNs};
    const int signal = ::sigtimedwait(&set, nullptr, &limit);
    if (signal <= 0 || (signal == SIGHUP && raised())) continue;
    // Sessions end by a SIGHUP and a SIGTERM behind it.
    const int before = signal_.exchange(signal);
    if (before != 0 && before != SIGHUP) ::_exit(128 + signal);
    const MutexLock lock(mutex_);
    if (then_) then_();
  }
}

}  // namespace muster::cli
