// Warm buffers under one bound: who wants more waits until others have given back, so that a fast
// sender is slowed down and memory stays bounded. Fresh memory costs a page fault per 4 KiB, so
// buffers are kept for the next taker.
//
// Threading: any thread. Lifetime: the pool outlives its leases.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/arena.h"

namespace muster::net {

class StagePool {
 public:
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)),
          memory_(std::move(other.memory_)),
          size_(other.size_) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (pool_ != nullptr) pool_->GiveBack(std::move(memory_));
    }
    // 64-byte aligned.
    std::span<std::byte> bytes() const { return {memory_.base(), size_}; }

   private:
    friend class StagePool;
    StagePool* pool_ = nullptr;
    Mapping memory_;
    std::size_t size_ = 0;
  };

  explicit StagePool(std::size_t limit) : limit_(limit) {}

  // A buffer of `bytes`, in the order in which they are asked for. More than the whole limit is
  // lent only while nothing else is.
  //   kResourceExhausted: no room before the deadline, or the system has no memory.
  Result<Lease> Take(std::size_t bytes, TimePoint deadline);

  // Lent and kept, together.
  std::size_t held() const;
  // How many wait for room.
  std::size_t waiting() const;

 private:
  void GiveBack(Mapping memory);
  // Nothing: there is no room.
  Result<std::optional<Mapping>> Lend(std::size_t capacity) MUSTER_REQUIRES(mutex_);
  // Nothing: there was no room before the deadline.
  Result<std::optional<Mapping>> LendInTurn(std::size_t capacity, TimePoint deadline)
      MUSTER_REQUIRES(mutex_);
  // Frees kept buffers until `more` fit, or none is kept.
  void MakeRoom(std::size_t more) MUSTER_REQUIRES(mutex_);

  const std::size_t limit_;
  mutable Mutex mutex_;
  Condition room_;
  std::size_t lent_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::size_t kept_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::multimap<std::size_t, Mapping> free_ MUSTER_GUARDED_BY(mutex_);
  // What they wait for, the first to come in front.
  std::list<std::size_t> waiting_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::net
