#include "cli/interrupt.h"

#include <csignal>
#include <utility>

#include <pthread.h>
#include <time.h>
#include <unistd.h>

namespace muster::cli {
namespace {

constexpr long kLookAroundNs = 100'000'000;  // how long the end of the program may wait for us

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t set = Signals();
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
  const sigset_t set = Signals();
  while (!done_) {
    const timespec limit{0, kLookAroundNs};
    const int signal = ::sigtimedwait(&set, nullptr, &limit);
    if (signal <= 0) continue;
    if (signal_.exchange(signal) != 0) ::_exit(128 + signal);
    const MutexLock lock(mutex_);
    if (then_) then_();
  }
}

}  // namespace muster::cli
