#include "common/net/stage_pool.h"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>

#include "common/base/words.h"
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

Result<std::optional<Mapping>> StagePool::Lend(std::size_t capacity) {
  const auto kept = free_.lower_bound(capacity);
  if (kept != free_.end() && kept->first <= 2 * capacity) {
    std::optional<Mapping> memory(std::move(kept->second));
    kept_ -= kept->first;
    lent_ += kept->first;
    free_.erase(kept);
    return memory;
  }
  MakeRoom(capacity);
  if (lent_ > 0 && lent_ + kept_ + capacity > limit_) return std::optional<Mapping>();
  MUSTER_TRY_ASSIGN(Mapping memory, NewBuffer(capacity));
  lent_ += capacity;
  return std::optional(std::move(memory));
}

// One after another: a large one among many that are small would never find the pool empty.
Result<std::optional<Mapping>> StagePool::LendInTurn(std::size_t capacity, TimePoint deadline) {
  if (waiting_.empty()) {
    MUSTER_TRY_ASSIGN(std::optional<Mapping> memory, Lend(capacity));
    if (memory) return memory;
  }
  const auto turn = waiting_.insert(waiting_.end(), capacity);
  Result<std::optional<Mapping>> memory = std::optional<Mapping>();
  do {
    if (turn == waiting_.begin()) memory = Lend(capacity);
  } while (memory.ok() && !memory->has_value() && room_.wait_until(mutex_, deadline));
  waiting_.erase(turn);
  // There may be room for the next one, now that this one has its own, or has given up.
  if (!waiting_.empty()) room_.notify_all();
  return memory;
}

Result<StagePool::Lease> StagePool::Take(std::size_t bytes, TimePoint deadline) {
  const MutexLock lock(mutex_);
  MUSTER_TRY_ASSIGN(std::optional<Mapping> memory, LendInTurn(Capacity(bytes), deadline));
  if (!memory) {
    return ResourceExhausted(
        "no room for a transfer of {} bytes: {} of the stage budget's {} are in use, and {} {}",
        bytes, lent_, limit_, Counted(waiting_.size(), "other transfer"),
        Agreeing(waiting_.size(), "waits", "wait"));
  }
  Lease lease;
  lease.memory_ = *std::move(memory);
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

std::size_t StagePool::waiting() const {
  const MutexLock lock(mutex_);
  return waiting_.size();
}

std::size_t StagePool::held() const {
  const MutexLock lock(mutex_);
  return lent_ + kept_;
}

}  // namespace muster::net
