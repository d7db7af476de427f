// Operations over the shared memory of one host. All-reduce: small chunks are summed by everybody
// from all slots; of larger ones each member sums its 1/n, in rank order, and the others take the
// sums from its slot: each byte is summed once, and results are those of one process with n
// replicas. Larger chunks are written past the caches: other processors read them.
#pragma once

#include <span>
#include <vector>

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

 private:
  // A piece of a buffer, and where it lies in every slot.
  struct Placed {
    const ReduceBuffer* buffer = nullptr;
    std::size_t begin = 0;
    std::size_t count = 0;
    std::size_t offset = 0;
  };
  Status ReduceChunk(const Operation& operation, Reduction reduction);
  void ReduceEverything(Reduction reduction);
  Status ReduceSlices(const Operation& operation, Reduction reduction);
  // What all members send and take, checked against each other: the largest part.
  Result<std::size_t> LargestPart(const Operation& operation,
                                  std::span<const std::span<const std::byte>> sends,
                                  std::span<const std::span<std::byte>> receives);
  std::uint64_t Signature(const Operation& operation) const;

  SharedMemory& memory_;
  std::vector<Placed> chunk_;
  std::size_t chunk_bytes_ = 0;
  // What all buffers get does not stay in the caches.
  bool large_ = false;
};

}  // namespace muster::collectives
