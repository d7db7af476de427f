// Memory of which each member on one host has a part, and maps those of all: a sum of what lies in
// it is made from where it lies (shared_operations.h). Group::AllocateCommon() makes it.
//
// Threading: after it has been made, any. Lifetime: the pages go with the last member's mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/status.h"
#include "common/net/arena.h"
#include "common/net/fd.h"

namespace muster::collectives {

class CommonMemory {
 public:
  // All parts together, so that no size overflows.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 40;
  // kInvalidArgument: no bytes, or more than kMostBytes for so many members.
  static Status Check(std::size_t bytes, int members);
  // kResourceExhausted: more than a machine of `machine` bytes, swap included, has for all of them,
  // or the process's control group (none: no limit) for the own part.
  static Status CheckRoom(std::size_t bytes, int members, std::uint64_t machine,
                          std::optional<std::uint64_t> group);

  // `bytes` for each of `members`, of whom this is the one at `rank`. By one of them; the others
  // map its descriptor. Pages of the own part are in place when it returns.
  //   kResourceExhausted: no memory for them, no address space, no descriptor.
  static Result<std::shared_ptr<CommonMemory>> Make(int rank, int members, std::size_t bytes);
  static Result<std::shared_ptr<CommonMemory>> Map(int rank, int members, std::size_t bytes,
                                                   net::Fd descriptor);

  // The maker's, until HandedOn(); -1 at who mapped it.
  int descriptor() const { return made_.fd(); }
  // All others have mapped it, and nobody needs a descriptor of it any more.
  void HandedOn() { made_ = net::Arena(); }
  // How much a part has.
  std::size_t bytes() const { return bytes_; }
  std::byte* part(int rank) const { return base_ + static_cast<std::size_t>(rank) * stride_; }
  std::byte* mine() const { return part(rank_); }
  // Where `size` bytes at `address` lie in the own part; none: not wholly inside of it.
  std::optional<std::size_t> OffsetOf(const void* address, std::size_t size) const;

 private:
  CommonMemory(int rank, std::size_t bytes) : rank_(rank), bytes_(bytes), stride_(Stride(bytes)) {}
  // Parts begin at multiples of 4,096 bytes.
  static std::size_t Stride(std::size_t bytes);
  Status PutPagesInPlace() const;

  const int rank_;
  const std::size_t bytes_;
  const std::size_t stride_;
  net::Arena made_;
  net::PeerArena mapped_;
  std::byte* base_ = nullptr;
};

}  // namespace muster::collectives
