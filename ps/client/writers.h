// Who sends write sets of no closure, each one after another: the number of a flush among its
// writer's tells a repeated one from the next.
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/net/proof.h"

namespace muster::ps {

class Writers {
 public:
  struct Writer {
    Attempt id;
    std::uint64_t next = 1;
  };

  // One whose flushes have all been answered, to be had by one set alone.
  Writer Take() {
    const MutexLock lock(mutex_);
    if (free_.empty()) return {.id = NewId()};
    const Writer taken = free_.back();
    free_.pop_back();
    return taken;
  }
  void GiveBack(const Writer& writer) {
    const MutexLock lock(mutex_);
    free_.push_back(writer);
  }

 private:
  // No other writer of any process has it.
  static Attempt NewId() {
    const net::Nonce nonce = net::RandomNonce();
    std::uint64_t number = 0;
    std::memcpy(&number, nonce.data(), sizeof(number));
    return Attempt(number | 1);  // 0 means "none"
  }

  Mutex mutex_;
  std::vector<Writer> free_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::ps
