#include "worker/engine/device/arena.h"

#include <array>
#include <atomic>
#include <bit>

#include <sys/mman.h>

#include "common/base/status.h"

namespace muster::device {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;
// Blocks from here on give their pages back when freed.
constexpr std::size_t kReturned = std::size_t{64} << 20;

thread_local const ArenaScope* t_scope = nullptr;

// Four classes between two powers of two: at most a quarter of a block is wasted.
std::size_t ClassOf(std::size_t bytes) {
  const std::size_t wanted = bytes <= kAlignment ? kAlignment : bytes;
  const auto power = static_cast<std::size_t>(std::bit_width(wanted - 1));  // 2^power >= wanted
  const std::size_t step = (std::size_t{1} << power) / 8;
  const std::size_t quarters = (wanted + step - 1) / step;  // 5..8 eighths of 2^power
  return power * 4 + (quarters - 5);
}

std::size_t SizeOfClass(std::size_t size_class) {
  const std::size_t size = (std::size_t{1} << (size_class / 4)) / 8 * (size_class % 4 + 5);
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

// Stands 64 bytes before each block.
struct Header {
  std::size_t size_class;
};

Header* HeaderOf(void* block) {
  return reinterpret_cast<Header*>(static_cast<std::byte*>(block) - kAlignment);
}

}  // namespace

std::byte* Arena::Reservation() {
  static std::byte* const reservation = [] {
    void* const range = mmap(nullptr, kRange * kMaxDevices, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUSTER_INVARIANT(range != MAP_FAILED);
    return static_cast<std::byte*>(range);
  }();
  return reservation;
}

Arena::Arena(std::byte* begin) : begin_(begin), free_(64 * 4) {
  // Fewer page faults, and fewer misses of the address cache in matrix products. A hint.
  (void)madvise(begin, kRange, MADV_HUGEPAGE);
}

Arena& Arena::Of(int index) {
  MUSTER_INVARIANT(index >= 0 && index < kMaxDevices);
  // Never destroyed: tensors in static variables may outlive any order of destruction.
  static auto& arenas = *new std::array<std::atomic<Arena*>, kMaxDevices>{};
  std::atomic<Arena*>& arena = arenas[static_cast<std::size_t>(index)];
  // Every allocation of every replica asks: no lock but for the first.
  if (Arena* const there = arena.load(std::memory_order_acquire)) return *there;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (arena.load(std::memory_order_relaxed) == nullptr) {
    arena.store(new Arena(Reservation() + kRange * static_cast<std::size_t>(index)),
                std::memory_order_release);
  }
  return *arena.load(std::memory_order_relaxed);
}

int Arena::IndexOf(const void* address) {
  const auto offset = static_cast<const std::byte*>(address) - Reservation();
  if (offset < 0 || static_cast<std::size_t>(offset) >= kRange * kMaxDevices) return 0;
  return static_cast<int>(static_cast<std::size_t>(offset) / kRange);
}

void* Arena::Allocate(std::size_t bytes) {
  const std::size_t size_class = ClassOf(bytes);
  const std::size_t size = SizeOfClass(size_class);
  const std::lock_guard lock(mutex_);
  std::byte* block = nullptr;
  if (std::vector<std::byte*>& ready = free_[size_class]; !ready.empty()) {
    block = ready.back();
    ready.pop_back();
  } else {
    if (next_ + size + kAlignment > kRange) return nullptr;
    block = begin_ + next_ + kAlignment;
    next_ += size + kAlignment;
    HeaderOf(block)->size_class = size_class;
  }
  used_ += size;
  return block;
}

void Arena::Free(void* block) {
  const std::size_t size_class = HeaderOf(block)->size_class;
  const std::size_t size = SizeOfClass(size_class);
  if (size >= kReturned) {
    // Whole pages inside the block; the header before it stays.
    const auto first = (reinterpret_cast<std::uintptr_t>(block) + kPage - 1) / kPage * kPage;
    const auto last = (reinterpret_cast<std::uintptr_t>(block) + size) / kPage * kPage;
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
  const std::lock_guard lock(mutex_);
  used_ -= size;
  free_[size_class].push_back(static_cast<std::byte*>(block));
}

std::size_t Arena::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

ArenaScope::ArenaScope(int index) : index_(index), outer_(t_scope) { t_scope = this; }
ArenaScope::~ArenaScope() { t_scope = outer_; }
int ArenaScope::Current() { return t_scope == nullptr ? 0 : t_scope->index_; }
Arena* ArenaScope::CurrentArena() {
  return t_scope == nullptr ? nullptr : &Arena::Of(t_scope->index_);
}

}  // namespace muster::device
