#include "common/base/kept_bytes.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <new>

#include <sys/mman.h>

#include "common/base/mutex.h"

namespace muster {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Spare blocks, which nobody has. A longer one is given back at once.
constexpr std::size_t kMostSpare = std::size_t{64} << 20;
// No memory has as much; what is rounded up to it would be nothing.
constexpr std::size_t kMostMapped = SIZE_MAX - 2 * kHugePage;

// Blocks of whole huge pages, which are kept for the next taker as long as they are few: their
// pages are there already.
class Blocks {
 public:
  // Never destroyed: the last block may come back when the program ends.
  static Blocks& All() {
    static auto* const blocks = new Blocks;
    return *blocks;
  }

  // `size` is made what it has.
  std::byte* Take(std::size_t& size) {
    if (size > kMostMapped) throw std::bad_alloc();
    size = (size + kHugePage - 1) / kHugePage * kHugePage;
    {
      const MutexLock lock(mutex_);
      const auto found = spare_.lower_bound(size);
      if (found != spare_.end() && found->first <= 2 * size) {
        size = found->first;
        std::byte* const block = found->second;
        spare_.erase(found);
        spare_bytes_ -= size;
        return block;
      }
    }
    return Map(size);
  }

  void GiveBack(std::byte* block, std::size_t size) noexcept {
    if (!Spare(block, size)) (void)::munmap(block, size);
  }

 private:
  // False: there are enough, or there is no memory to note it in.
  bool Spare(std::byte* block, std::size_t size) noexcept {
    const MutexLock lock(mutex_);
    if (spare_bytes_ + size > kMostSpare) return false;
    try {
      spare_.emplace(size, block);
    } catch (const std::bad_alloc&) {
      return false;
    }
    spare_bytes_ += size;
    return true;
  }

  // At a huge page's boundary.
  static std::byte* Map(std::size_t size) {
    void* mapping = ::mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    auto* const begin = static_cast<std::byte*>(mapping);
    const std::size_t before = -reinterpret_cast<std::uintptr_t>(mapping) % kHugePage;
    if (before > 0) (void)::munmap(begin, before);
    (void)::munmap(begin + before + size, kHugePage - before);
    // A hint: without huge pages everything still works.
    (void)::madvise(begin + before, size, MADV_HUGEPAGE);
    return begin + before;
  }

  Mutex mutex_;
  std::multimap<std::size_t, std::byte*> spare_ MUSTER_GUARDED_BY(mutex_);
  std::size_t spare_bytes_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::shared_ptr<std::byte[]> NewBytes(std::size_t bytes) {
  if (bytes < kLongBytes) return std::make_shared_for_overwrite<std::byte[]>(bytes);
  std::size_t size = bytes;
  std::byte* const block = Blocks::All().Take(size);
  return {block, [size](std::byte* mine) { Blocks::All().GiveBack(mine, size); }};
}

KeptBytes KeptBytes::CopyOf(std::span<const std::byte> bytes) {
  const std::shared_ptr<std::byte[]> memory = NewBytes(bytes.size());
  if (!bytes.empty()) std::memcpy(memory.get(), bytes.data(), bytes.size());
  return {{memory.get(), bytes.size()}, memory};
}

KeptBytes KeptBytes::Of(std::vector<std::byte> bytes) {
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return {*owner, Keeper(owner, owner->data())};
}

}  // namespace muster
