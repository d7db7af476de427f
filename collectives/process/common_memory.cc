#include "collectives/process/common_memory.h"

#include <cerrno>
#include <functional>
#include <span>
#include <utility>

#include <sys/mman.h>

namespace muster::collectives {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

std::size_t CommonMemory::Stride(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

Status CommonMemory::Check(std::size_t bytes, int members) {
  const std::size_t most = kMostBytes / static_cast<std::size_t>(members);
  if (bytes > 0 && bytes <= most) return Ok();
  return InvalidArgument("common memory of {} bytes for each of {} members: 1 to {} are allowed",
                         bytes, members, most);
}

Result<std::shared_ptr<CommonMemory>> CommonMemory::Make(int rank, int members, std::size_t bytes) {
  std::shared_ptr<CommonMemory> memory(new CommonMemory(rank, bytes));
  const std::size_t all = static_cast<std::size_t>(members) * memory->stride_;
  MUSTER_TRY_ASSIGN(memory->arena_, net::Arena::Create(all, /*shared=*/true));
  memory->base_ = memory->arena_.base();
  MUSTER_TRY(memory->PutPagesInPlace());
  return memory;
}

Result<std::shared_ptr<CommonMemory>> CommonMemory::Map(int rank, int members, std::size_t bytes,
                                                        net::Fd descriptor) {
  std::shared_ptr<CommonMemory> memory(new CommonMemory(rank, bytes));
  const std::size_t all = static_cast<std::size_t>(members) * memory->stride_;
  MUSTER_TRY_ASSIGN(memory->peer_,
                    net::PeerArena::Map(std::move(descriptor), all + net::kHugePage));
  MUSTER_TRY_ASSIGN(const std::span<std::byte> base, memory->peer_.At(0, all, kPage));
  memory->base_ = base.data();
  MUSTER_TRY(memory->PutPagesInPlace());
  return memory;
}

// A kernel that does not know how leaves it to the first touch. One that has no memory says so
// here, where the first touch would end the process.
Status CommonMemory::PutPagesInPlace() const {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(mine(), stride_, MADV_POPULATE_WRITE) != 0 &&
      (errno == ENOMEM || errno == EFAULT)) {
    return ResourceExhausted("no memory for {} bytes of common memory", bytes_);
  }
#endif
  return Ok();
}

std::optional<std::size_t> CommonMemory::OffsetOf(const void* address, std::size_t size) const {
  const auto* const at = static_cast<const std::byte*>(address);
  const std::less<> before;  // of pointers into different objects, too
  if (before(at, mine()) || !before(at, mine() + bytes_)) return std::nullopt;
  const auto offset = static_cast<std::size_t>(at - mine());
  if (size > bytes_ - offset) return std::nullopt;
  return offset;
}

}  // namespace muster::collectives
