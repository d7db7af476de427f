// The operations of a group over one kind of transport. Arguments have been checked; members that
// call something else are found by the tag's signature.
//
// Threading: one thread. Errors: as the transport's waits (mesh.h, shared_memory.h); after any, the
// group is over.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/group.h"
#include "collectives/packing.h"
#include "collectives/process/mesh.h"
#include "collectives/process/waiter.h"

namespace muster::collectives {

// One operation in progress.
struct Operation {
  Tag tag;
  Waiter waiter;
};

class Operations {
 public:
  virtual ~Operations() = default;
  virtual Status AllReduce(const Operation& operation, Reduction reduction,
                           std::span<const ReduceBuffer> buffers) = 0;
  // into[r] gets what member r brings; all know how much that is.
  virtual Status Gather(const Operation& operation, std::span<const std::byte> mine,
                        std::span<const std::span<std::byte>> into) = 0;
  virtual Status Broadcast(const Operation& operation, std::span<std::byte> data, int root) = 0;
  // ranges[r] of `in` is reduced at member r, in rank order, into `out` there; the same on all.
  virtual Status ReduceScatter(const Operation& operation, Reduction reduction, DType type,
                               const std::byte* in, std::span<const Range> ranges,
                               std::byte* out) = 0;
  // sends[r] goes to member r, receives[r] gets what member r sends here.
  virtual Status AllToAll(const Operation& operation,
                          std::span<const std::span<const std::byte>> sends,
                          std::span<const std::span<std::byte>> receives) = 0;
  virtual Status Barrier(const Operation& operation) = 0;
  // After an error: the members that were waited for.
  virtual const std::vector<int>& waiting() const = 0;
};

}  // namespace muster::collectives
