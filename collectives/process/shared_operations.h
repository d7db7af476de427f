// Operations over the shared memory of one host. All-reduce: small chunks are summed by everybody
// from all slots; of larger ones each member sums its 1/n, in rank order, and the others take the
// sums from its slot: each byte is summed once, and results are those of one process with n
// replicas. Larger chunks are written past the caches: other processors read them.
//
// What lies in common memory (common_memory.h), at the same places on all members, is not copied
// into slots. Where two members' results lie apart from what is summed, each of the two sums
// everything. Else each sums its 1/n, and copies the others' parts from their results. Members say
// first where their buffers lie, and last that they no longer read those of others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/packing.h"
#include "collectives/process/common_memory.h"
#include "collectives/process/operations.h"
#include "collectives/process/shared_memory.h"

namespace muster::collectives {

class SharedOperations final : public Operations {
 public:
  // Lifetime: `memory` outlives it.
  explicit SharedOperations(SharedMemory& memory) : memory_(memory) {}

  Status AllReduce(const Operation& operation, Reduction reduction,
                   std::span<const ReduceBuffer> buffers) override;
  Status Gather(const Operation& operation, std::span<const std::byte> mine,
                std::span<const std::span<std::byte>> into) override;
  Status Broadcast(const Operation& operation, std::span<std::byte> data, int root) override;
  Status ReduceScatter(const Operation& operation, Reduction reduction, DType type,
                       const std::byte* in, std::span<const Range> ranges, std::byte* out) override;
  //   kInvalidArgument, for all: a member sends more or less than the other takes.
  Status AllToAll(const Operation& operation, std::span<const std::span<const std::byte>> sends,
                  std::span<const std::span<std::byte>> receives) override;
  Status Barrier(const Operation& operation) override;
  const std::vector<int>& waiting() const override { return memory_.waiting(); }

  // From now on what lies in `memory`, which all members have mapped, is summed where it lies, for
  // as long as somebody else keeps it. All members know the same, in the same order.
  void Know(const std::shared_ptr<CommonMemory>& memory);

 private:
  // A piece of a buffer, and where it lies in every slot.
  struct Placed {
    const ReduceBuffer* buffer = nullptr;
    std::size_t begin = 0;
    std::size_t count = 0;
    std::size_t offset = 0;
  };
  // Where a buffer lies in the own part of common memory, and so in those of the others.
  struct Found {
    std::shared_ptr<CommonMemory> in;
    std::shared_ptr<CommonMemory> out;  // null: it was not looked for
    std::size_t in_offset = 0;
    std::size_t out_offset = 0;
  };
  // Sums where all members' buffers lie, if they lie at the same places of common memory. False, on
  // all members: they do not.
  Result<bool> ReduceWhereItLies(const Operation& operation, Reduction reduction,
                                 std::span<const ReduceBuffer> buffers);
  // Fills `found`, and gives a number for what is there; 0: not all lies in common memory. `apart`:
  // results that this member alone writes and reads may lie anywhere.
  std::uint64_t Find(Reduction reduction, std::span<const ReduceBuffer> buffers, bool apart,
                     std::vector<Found>& found) const;
  // Sums these pieces of all members' buffers. Handed: other members read the result.
  void ReduceOwn(Reduction reduction, std::span<const ReduceBuffer> buffers,
                 std::span<const Found> found, std::span<const Piece> pieces, bool handed);
  void Take(void* to, const void* from, std::size_t bytes) const;
  Status ReduceChunk(const Operation& operation, Reduction reduction);
  void ReduceEverything(Reduction reduction);
  Status ReduceSlices(const Operation& operation, Reduction reduction);
  // What all members send and take, checked against each other: the largest part.
  Result<std::size_t> LargestPart(const Operation& operation,
                                  std::span<const std::span<const std::byte>> sends,
                                  std::span<const std::span<std::byte>> receives);
  std::uint64_t Signature(const Operation& operation) const;

  SharedMemory& memory_;
  struct Known {
    std::uint64_t number = 0;  // the same on all members
    std::weak_ptr<CommonMemory> memory;
  };
  std::vector<Known> known_;
  std::uint64_t numbers_ = 0;  // given
  std::vector<Placed> chunk_;
  std::size_t chunk_bytes_ = 0;
  // What all buffers get does not stay in the caches.
  bool large_ = false;
};

}  // namespace muster::collectives
