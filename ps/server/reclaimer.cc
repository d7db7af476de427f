#include "ps/server/reclaimer.h"

#include <chrono>
#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>

namespace muster::ps {
namespace {

// A core writes about 50 MB in this time.
constexpr std::chrono::milliseconds kEvery{10};

// Whole pages inside `bytes`: the kernel, whose size they have, takes no part of one.
void Release(std::span<std::byte> bytes) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = (first + page - 1) / page * page;
  const std::uintptr_t end = (first + bytes.size()) / page * page;
  if (begin < end) (void)::madvise(bytes.data() + (begin - first), end - begin, MADV_DONTNEED);
}

}  // namespace

Reclaimer::~Reclaimer() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Reclaimer::Guard Reclaimer::Watch(std::span<std::byte> shared) {
  const MutexLock lock(mutex_);
  watched_.push_back(shared);
  changed_.notify_all();
  return {*this, std::prev(watched_.end())};
}

void Reclaimer::Forget(Guard::Place at) {
  const MutexLock lock(mutex_);
  Release(*at);
  watched_.erase(at);
}

void Reclaimer::Run() {
  const MutexLock lock(mutex_);
  while (!stopping_) {
    // Under the lock, so that nothing is released that has been unmapped since.
    for (const auto bytes : watched_) Release(bytes);
    if (watched_.empty()) {
      changed_.wait(mutex_);
    } else {
      (void)changed_.wait_until(mutex_, std::chrono::steady_clock::now() + kEvery);
    }
  }
}

}  // namespace muster::ps
