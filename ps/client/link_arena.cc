#include "ps/client/link_arena.h"

#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace muster::ps {
namespace {

// Address space; one shard may be as large as a frame. Memory is used where it is touched.
constexpr std::size_t kRoom = 17ULL << 30;
constexpr std::size_t kLentRoom = 15ULL << 30;
// What is kept of the room between requests, and of blocks that are free.
constexpr std::size_t kKeptRoom = 128ULL << 20;
constexpr std::size_t kKeptBlocks = 128ULL << 20;
// Lines of the processor's cache are not shared between parts.
constexpr std::size_t kLine = 64;

constexpr std::size_t RoundUp(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// The kernel's: what it takes back is whole pages, and it would round up what is not.
std::size_t Page() {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

// What a block of so many bytes is a multiple of, and where it may begin.
std::size_t GrainOf(std::size_t bytes) {
  if (bytes >= net::kHugePage) return net::kHugePage;
  return bytes >= Page() ? Page() : kLine;
}

}  // namespace

Lent Lent::Ordinary(std::size_t bytes) {
  auto memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
  const std::span<std::byte> span(memory.get(), bytes);
  return {.bytes = span, .owner = std::move(memory)};
}

Result<std::shared_ptr<LinkArena>> LinkArena::Create(bool shared) {
  MUSTER_TRY_ASSIGN(net::Arena memory,
                    net::Arena::Create(shared ? kRoom + kLentRoom : std::size_t{1}, shared));
  return std::shared_ptr<LinkArena>(new LinkArena(std::move(memory)));
}

std::size_t LinkArena::room() { return kRoom; }

void LinkArena::BeginRequest() {
  if (used_ > kKeptRoom) (void)::madvise(At(kKeptRoom), used_ - kKeptRoom, MADV_REMOVE);
  used_ = 0;
}

std::optional<std::size_t> LinkArena::Reserve(std::size_t bytes) {
  const std::size_t taken = RoundUp(bytes, kLine);
  if (taken > kRoom - used_) return std::nullopt;
  const std::size_t offset = used_;
  used_ += taken;
  return offset;
}

// A free block of the same size, else a new one.
Lent LinkArena::Lend(std::size_t bytes) {
  const std::size_t grain = GrainOf(bytes);
  const std::size_t size = RoundUp(bytes, grain);
  std::size_t offset = 0;
  {
    const MutexLock lock(mutex_);
    if (const auto found = free_.find(size); found != free_.end()) {
      offset = found->second.offset;
      if (found->second.holds_memory) kept_ -= size;
      free_.erase(found);
    } else {
      const std::size_t start = RoundUp(cut_, grain);
      if (size > kLentRoom - start) return {};
      offset = kRoom + start;
      cut_ = start + size;
      // A hint: without huge pages everything still works.
      if (grain == net::kHugePage) (void)::madvise(At(offset), size, MADV_HUGEPAGE);
    }
  }
  return {
      .bytes = std::span(At(offset), bytes),
      .owner = std::shared_ptr<void>(At(offset), [arena = shared_from_this(), offset, size](void*) {
        arena->GiveBack(offset, size);
      })};
}

void LinkArena::GiveBack(std::size_t offset, std::size_t size) {
  const MutexLock lock(mutex_);
  const bool keep = kept_ + size <= kKeptBlocks || size < Page();
  if (keep) {
    kept_ += size;
  } else {
    (void)::madvise(At(offset), size, MADV_REMOVE);
  }
  free_.emplace(size, Block{.offset = offset, .holds_memory = keep});
}

}  // namespace muster::ps
