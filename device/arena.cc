#include "device/arena.h"

#include <bit>

#include <sys/mman.h>

#include "common/base/page.h"
#include "common/base/status.h"

namespace muster::device {
namespace {

constexpr std::size_t kAlignment = 64;
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

// Where there are pieces: what is better not left in one.
constexpr bool AloneInItsMapping(std::size_t size) { return size > Arena::kPiece / 2; }
constexpr std::size_t MappingFor(std::size_t size) {
  return (size + kAlignment + Arena::kPiece - 1) / Arena::kPiece * Arena::kPiece;
}

}  // namespace

constinit std::array<std::uint8_t, Arena::kPieces> Arena::owners_{};

std::byte* Arena::Map(std::size_t bytes) const {
  // One piece more, so that whole ones are in it.
  void* const range = mmap(nullptr, bytes + kPiece, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(range);
  const std::uintptr_t first = (start + kPiece - 1) / kPiece * kPiece;
  if (first > start) (void)munmap(range, first - start);
  auto* const begin = reinterpret_cast<std::byte*>(first);
  const std::size_t behind = start + kPiece - first;
  if (behind > 0) (void)munmap(begin + bytes, behind);
  if (first / kPiece + bytes / kPiece > kPieces) {
    (void)munmap(begin, bytes);
    return nullptr;
  }
  // Fewer page faults, and fewer misses of the address cache in matrix products. A hint.
  (void)madvise(begin, bytes, MADV_HUGEPAGE);
  for (std::size_t i = 0; i < bytes / kPiece; ++i) {
    Owner(first / kPiece + i)
        .store(static_cast<std::uint8_t>(index_ + 1), std::memory_order_relaxed);
  }
  return begin;
}

void Arena::Unmap(std::byte* begin, std::size_t bytes) {
  const std::size_t first = reinterpret_cast<std::uintptr_t>(begin) / kPiece;
  for (std::size_t i = 0; i < bytes / kPiece; ++i) {
    Owner(first + i).store(0, std::memory_order_relaxed);
  }
  (void)munmap(begin, bytes);
}

Arena& Arena::Of(int index) {
  MUSTER_INVARIANT(index >= 0 && index < kMaxArenas);
  // Never destroyed: tensors in static variables may outlive any order of destruction.
  static auto& arenas = *new std::array<std::atomic<Arena*>, kMaxArenas>{};
  std::atomic<Arena*>& arena = arenas[static_cast<std::size_t>(index)];
  // Every allocation of every replica asks: no lock but for the first.
  if (Arena* const there = arena.load(std::memory_order_acquire)) return *there;
  static Mutex mutex;
  const MutexLock lock(mutex);
  if (arena.load(std::memory_order_relaxed) == nullptr) {
    arena.store(new Arena(index), std::memory_order_release);
  }
  return *arena.load(std::memory_order_relaxed);
}

std::byte* Arena::NewBlock(std::size_t size) {
  const std::size_t whole = size + kAlignment;
  if (next_ == nullptr && !pieces_) {
    next_ = Map(kRange);
    if (next_ == nullptr) {
      pieces_ = true;
    } else {
      end_ = next_ + kRange;
    }
  }
  if (pieces_ && AloneInItsMapping(size)) {
    std::byte* const alone = Map(MappingFor(size));
    return alone == nullptr ? nullptr : alone + kAlignment;
  }
  if (whole > static_cast<std::size_t>(end_ - next_)) {
    if (!pieces_) return nullptr;
    // The rest of the last piece stays unused.
    std::byte* const piece = Map(kPiece);
    if (piece == nullptr) return nullptr;
    next_ = piece;
    end_ = piece + kPiece;
  }
  std::byte* const block = next_ + kAlignment;
  next_ += whole;
  return block;
}

void* Arena::Allocate(std::size_t bytes) {
  const std::size_t size_class = ClassOf(bytes);
  const std::size_t size = SizeOfClass(size_class);
  const MutexLock lock(mutex_);
  std::byte* block = nullptr;
  if (std::vector<std::byte*>& ready = free_[size_class]; !ready.empty()) {
    block = ready.back();
    ready.pop_back();
  } else {
    block = NewBlock(size);
    if (block == nullptr) return nullptr;
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
    const auto first =
        (reinterpret_cast<std::uintptr_t>(block) + kPageBytes - 1) / kPageBytes * kPageBytes;
    const auto last = (reinterpret_cast<std::uintptr_t>(block) + size) / kPageBytes * kPageBytes;
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
  const MutexLock lock(mutex_);
  used_ -= size;
  if (pieces_ && AloneInItsMapping(size)) {
    return Unmap(static_cast<std::byte*>(block) - kAlignment, MappingFor(size));
  }
  free_[size_class].push_back(static_cast<std::byte*>(block));
}

std::size_t Arena::used() const {
  const MutexLock lock(mutex_);
  return used_;
}

ArenaScope::ArenaScope(int index) : index_(index), outer_(t_scope) { t_scope = this; }
ArenaScope::~ArenaScope() { t_scope = outer_; }
int ArenaScope::Current() { return t_scope == nullptr ? 0 : t_scope->index_; }
Arena* ArenaScope::CurrentArena() {
  return t_scope == nullptr ? nullptr : &Arena::Of(t_scope->index_);
}

}  // namespace muster::device
