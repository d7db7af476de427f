// The arena of a program's link: room for one request after another, and blocks that are lent to
// who reads, for as long as they are kept; so a value need not be copied out of the arena.
//
// Threading: one thread; blocks are given back by any. Lifetime: a block keeps the arena.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/net/arena.h"

namespace muster::ps {

// Memory of a value that was read, and what keeps it. The reader may change it.
struct Lent {
  std::span<std::byte> bytes{};
  std::shared_ptr<void> owner{};

  // Ordinary memory.
  static Lent Ordinary(std::size_t bytes);
};

class LinkArena : public std::enable_shared_from_this<LinkArena> {
 public:
  // Shared with a server, or for nobody's use.
  //   kResourceExhausted: no address space.
  static Result<std::shared_ptr<LinkArena>> Create(bool shared);

  const net::Arena& memory() const { return memory_; }
  std::byte* At(std::size_t offset) const { return memory_.base() + offset; }

  // Before a request: its room is free again, and what a large one has taken is given back.
  void BeginRequest();
  // The next bytes of the request's room. nullopt: it is full.
  std::optional<std::size_t> Reserve(std::size_t bytes);
  // What a request may reserve.
  static std::size_t room();

  // A block of its own. Empty: there is no room for it.
  Lent Lend(std::size_t bytes);
  std::size_t OffsetOf(const Lent& lent) const { return memory_.OffsetOf(lent.bytes.data()); }

 private:
  struct Block {
    std::size_t offset = 0;
    // Not given back to the kernel.
    bool holds_memory = false;
  };

  explicit LinkArena(net::Arena memory) : memory_(std::move(memory)) {}
  void GiveBack(std::size_t offset, std::size_t size);

  net::Arena memory_;
  std::size_t used_ = 0;

  Mutex mutex_;
  // Blocks that are free, by size: who reads a variable reads it again.
  std::multimap<std::size_t, Block> free_ MUSTER_GUARDED_BY(mutex_);
  // Bytes of those that hold memory.
  std::size_t kept_ MUSTER_GUARDED_BY(mutex_) = 0;
  // How far the lent part has been cut into blocks.
  std::size_t cut_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace muster::ps
