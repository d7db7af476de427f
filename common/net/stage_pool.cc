#include "common/net/stage_pool.h"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>

#include "common/net/arena.h"

namespace muster::net {
namespace {

// Sizes in steps, so that a buffer fits the next request of about its size.
std::size_t Capacity(std::size_t bytes) {
  const std::size_t step = bytes > kHugePage ? kHugePage : std::size_t{64} << 10;
  return (std::max<std::size_t>(bytes, 1) + step - 1) / step * step;
}

Result<Mapping> NewBuffer(std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted("no memory for a transfer of {} bytes: {}", bytes,
                             Message(FromErrno(errno, "mmap")));
  }
  if (bytes >= kHugePage) (void)::madvise(base, bytes, MADV_HUGEPAGE);
  return Mapping(static_cast<std::byte*>(base), bytes);
}

}  // namespace

void StagePool::MakeRoom(std::size_t more) {
  while (!free_.empty() && lent_ + kept_ + more > limit_) {
    const auto largest = std::prev(free_.end());
    kept_ -= largest->first;
    free_.erase(largest);
  }
}

Result<StagePool::Lease> StagePool::Take(std::size_t bytes, TimePoint deadline) {
  const std::size_t capacity = Capacity(bytes);
  Lease lease;
  MutexLock lock(mutex_);
  for (;;) {
    const auto kept = free_.lower_bound(capacity);
    if (kept != free_.end() && kept->first <= 2 * capacity) {
      lease.memory_ = std::move(kept->second);
      kept_ -= kept->first;
      lent_ += kept->first;
      free_.erase(kept);
      break;
    }
    MakeRoom(capacity);
    if (lent_ == 0 || lent_ + kept_ + capacity <= limit_) {
      MUSTER_TRY_ASSIGN(lease.memory_, NewBuffer(capacity));
      lent_ += capacity;
      break;
    }
    if (!room_.wait_until(mutex_, deadline)) {
      return ResourceExhausted(
          "no room for a transfer of {} bytes: {} of the stage budget's {} are in use", bytes,
          lent_, limit_);
    }
  }
  lease.pool_ = this;
  lease.size_ = bytes;
  return lease;
}

void StagePool::GiveBack(Mapping memory) {
  {
    const MutexLock lock(mutex_);
    const std::size_t size = memory.size();
    lent_ -= size;
    if (lent_ + kept_ + size <= limit_) {
      kept_ += size;
      free_.emplace(size, std::move(memory));
    }
  }
  room_.notify_all();
}

std::size_t StagePool::held() const {
  const MutexLock lock(mutex_);
  return lent_ + kept_;
}

}  // namespace muster::net
