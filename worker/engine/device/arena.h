// The memory of one logical CPU device: a range of addresses of its own, so that the device of any
// buffer is found from its address alone.
//
// Blocks are kept for the next request of their size class: a training step asks for the same sizes
// again and again, and fresh pages would cost more than the step. Large blocks that are freed give
// their pages back.
//
// Threading: any thread. Lifetime: arenas live until the process ends, like the tensors in them
// may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace muster::device {

class Arena {
 public:
  // The arena of logical device CPU:`index`, index >= 0. On CPU:0 is the memory of no arena, too.
  static Arena& Of(int index);
  // The index of the arena that `address` lies in; 0 when it lies in none.
  static int IndexOf(const void* address);

  // 64-byte aligned; never null for 0 bytes either. Null when the arena's range is used up.
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
  static constexpr int kMaxDevices = 64;

 private:
  explicit Arena(std::byte* begin);
  static std::byte* Reservation();

  std::byte* const begin_;
  mutable std::mutex mutex_;
  std::size_t next_ = 0;                       // guarded by mutex_
  std::size_t used_ = 0;                       // guarded by mutex_
  std::vector<std::vector<std::byte*>> free_;  // by size class; guarded by mutex_
};

// While it lives, libtorch's CPU factories called on this thread allocate from CPU:`index`.
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
