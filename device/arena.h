// The memory of one logical CPU device, or of one emulated TPU core: addresses of its own, so that
// the device of any buffer is found from its address alone.
//
// An arena reserves one large range. Where the process may not have so many addresses (ulimit -v,
// valgrind, ThreadSanitizer's programs) it takes pieces of 64 MiB when it needs them, and a block
// of more than half a piece is mapped, and given back, by itself.
//
// Blocks are kept for the next request of their size class: a training step asks for the same sizes
// again and again, and fresh pages would cost more than the step. Large blocks that are freed give
// their pages back.
//
// Threading: any thread. Lifetime: arenas live until the process ends, like the tensors in them
// may.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/mutex.h"

namespace muster::device {

class Arena {
 public:
  // Arena number `index`, in [0, kMaxArenas): those of CPU:0, CPU:1, ... come first, then those of
  // TPU:0, TPU:1, ... (ArenaOf() of placing.h). On CPU:0 is the memory of no arena, too.
  static Arena& Of(int index);
  // The index of the arena that `address` lies in; 0 when it lies in none.
  static int IndexOf(const void* address) {
    const int owner = OwnerOf(address);
    return owner > 0 ? owner - 1 : 0;
  }
  // The arena that `address` lies in; null when it lies in none.
  static Arena* Holding(const void* address) {
    const int owner = OwnerOf(address);
    return owner > 0 ? &Of(owner - 1) : nullptr;
  }

  // 64-byte aligned; never null for 0 bytes either. Null when the system gives no more addresses.
  void* Allocate(std::size_t bytes);
  // `block` is from Allocate() of this arena.
  void Free(void* block);
  // Bytes in blocks that are allocated and not freed.
  std::size_t used() const;

  // Addresses reserved for each device; pages cost nothing until they are touched.
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer leaves little of the address space to programs.
  static constexpr std::size_t kRange = std::size_t{1} << 32;
#else
  static constexpr std::size_t kRange = std::size_t{1} << 38;
#endif
  static constexpr std::size_t kPiece = std::size_t{1} << 26;
  // Logical CPUs; and as many TPU cores.
  static constexpr int kMaxDevices = 64;
  static constexpr int kMaxArenas = 2 * kMaxDevices;

 private:
  // Mappings begin and end at multiples of kPiece, so a piece of addresses has one owner.
  static constexpr std::size_t kAddressBits = 48;
  static constexpr std::size_t kPieces = (std::size_t{1} << kAddressBits) / kPiece;

  explicit Arena(int index) : index_(index), free_(64 * 4) {}
  // The index of the arena + 1; 0: none.
  static int OwnerOf(const void* address) {
    const std::size_t piece = reinterpret_cast<std::uintptr_t>(address) / kPiece;
    return piece < kPieces ? Owner(piece).load(std::memory_order_relaxed) : 0;
  }
  // `bytes` is a multiple of kPiece. Null: the system refuses.
  std::byte* Map(std::size_t bytes) const;
  static void Unmap(std::byte* begin, std::size_t bytes);
  // Null: no more addresses.
  std::byte* NewBlock(std::size_t size) MUSTER_REQUIRES(mutex_);

  // A piece is written before anybody has an address in it. Of the 4 MiB a few pages are touched.
  static std::atomic_ref<std::uint8_t> Owner(std::size_t piece) {
    return std::atomic_ref(owners_[piece]);
  }
  static std::array<std::uint8_t, kPieces> owners_;

  const int index_;
  mutable Mutex mutex_;
  std::byte* next_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  std::byte* end_ MUSTER_GUARDED_BY(mutex_) = nullptr;  // of the mapping that next_ is in
  bool pieces_ MUSTER_GUARDED_BY(mutex_) = false;       // the large range was refused
  std::size_t used_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::vector<std::vector<std::byte*>> free_ MUSTER_GUARDED_BY(mutex_);  // by size class
};

// While it lives, libtorch's CPU factories called on this thread allocate from arena `index`.
class ArenaScope {
 public:
  explicit ArenaScope(int index);
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

  // The index that this thread allocates from; 0 outside any scope.
  static int Current();
  // Its arena; null outside any scope, where libtorch's own allocator serves.
  static Arena* CurrentArena();

 private:
  const int index_;
  const ArenaScope* const outer_;
};

}  // namespace muster::device
