// Shared memory that one process makes and its peers map: tensors live in it, so that on one host
// their bytes never pass through a socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/net/fd.h"

namespace muster::net {

// Memory of this size and more is worth huge pages.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// A mapping; unmapped when destroyed.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* base, std::size_t size) : base_(base), size_(size) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* base() const { return base_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
};

// The maker's side. Address space is reserved sparsely: memory is used where it is touched.
class Arena {
 public:
  // With `shared`, a sealed memfd (its size can never change again); else private memory.
  //   kResourceExhausted: the address space is limited.
  static Result<Arena> Create(std::size_t bytes, bool shared);

  std::byte* base() const { return mapping_.base(); }
  std::size_t size() const { return mapping_.size(); }
  // -1 for private memory.
  int fd() const { return fd_.get(); }
  std::size_t OffsetOf(const void* in_arena) const;
  // The next `bytes`, 64-byte aligned, untouched.
  //   kResourceExhausted: the arena is full.
  Result<std::span<std::byte>> Allocate(std::size_t bytes);
  // The same, at a huge page's boundary where it is large, with its pages in place: fresh ones cost
  // a fault each.
  Result<std::span<std::byte>> AllocateWarm(std::size_t bytes);
  // Puts the same contents, at the same addresses, into memory of its own: who has mapped the
  // arena before keeps what it was, and sees nothing of what is written from now on. Harmless for
  // private memory.
  //   kResourceExhausted, kUnavailable: no memory for it; nothing has changed.
  Status Renew();
  // What either may take of the arena.
  static std::size_t Footprint(std::size_t bytes);

 private:
  Result<std::span<std::byte>> AllocateAt(std::size_t bytes, std::size_t align);

  Fd fd_;
  Mapping mapping_;
  std::size_t used_ = 0;
  // Where huge pages were asked for.
  std::vector<std::span<std::byte>> huge_;
};

// The peer's side: every offset is checked against the sealed size. Threading: one thread.
class PeerArena {
 public:
  // kInvalidArgument: not a memfd of ordinary pages, sealed against shrinking, or larger than
  // `limit`.
  static Result<PeerArena> Map(Fd fd, std::size_t limit);

  std::size_t size() const { return mapping_.size(); }
  // kOutOfRange: not inside the arena, or not aligned to `align`.
  Result<std::span<std::byte>> At(std::uint64_t offset, std::uint64_t bytes, std::size_t align);
  // Bytes that At() has lent out since the last Release(), in blocks.
  std::size_t resident() const { return resident_blocks_ * kBlock; }
  // Gives this process's share of the pages back; the data stays with the maker.
  void Release();

 private:
  static constexpr std::size_t kBlock = 2U << 20;

  Mapping mapping_;
  std::vector<bool> touched_;
  std::size_t resident_blocks_ = 0;
};

}  // namespace muster::net
