#include "collectives/process/common_memory.h"

#include <cerrno>
#include <functional>
#include <span>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include "common/base/limits.h"
#include "common/base/page.h"

namespace muster::collectives {

std::size_t CommonMemory::Stride(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Status CommonMemory::Check(std::size_t bytes, int members) {
  const std::size_t most = kMostBytes / static_cast<std::size_t>(members);
  if (bytes > 0 && bytes <= most) return Ok();
  return InvalidArgument("common memory of {} bytes for each of {} members: 1 to {} are allowed",
                         bytes, members, most);
}

// Pages are put in place, and where no more are left the kernel ends a process of its choice.
Status CommonMemory::CheckRoom(std::size_t bytes, int members, std::uint64_t machine,
                               std::optional<std::uint64_t> group) {
  if (Stride(bytes) * static_cast<std::size_t>(members) > machine) {
    return ResourceExhausted(
        "common memory of {} bytes for each of {} members is more than this machine has, {} bytes",
        bytes, members, machine);
  }
  if (group.has_value() && Stride(bytes) > *group) {
    return ResourceExhausted(
        "common memory of {} bytes is more than this process's control group may have, {} bytes",
        bytes, *group);
  }
  return Ok();
}

// The maker maps it as the others do: each memory would keep a descriptor for as long as it lives.
Result<std::shared_ptr<CommonMemory>> CommonMemory::Make(int rank, int members, std::size_t bytes) {
  const std::size_t all = static_cast<std::size_t>(members) * Stride(bytes);
  MUSTER_TRY_ASSIGN(net::Arena made, net::Arena::Create(all, /*shared=*/true));
  net::Fd again(::fcntl(made.fd(), F_DUPFD_CLOEXEC, 0));
  if (!again.valid()) return FromErrno(errno, "a descriptor for common memory");
  MUSTER_TRY_ASSIGN(auto memory, Map(rank, members, bytes, std::move(again)));
  memory->made_ = std::move(made);
  return memory;
}

Result<std::shared_ptr<CommonMemory>> CommonMemory::Map(int rank, int members, std::size_t bytes,
                                                        net::Fd descriptor) {
  struct sysinfo machine{};
  if (::sysinfo(&machine) == 0) {
    const std::uint64_t pages = std::uint64_t{machine.totalram} + machine.totalswap;
    MUSTER_TRY(CheckRoom(bytes, members, pages * machine.mem_unit, ReadLimits().memory_bytes));
  }
  std::shared_ptr<CommonMemory> memory(new CommonMemory(rank, bytes));
  const std::size_t all = static_cast<std::size_t>(members) * memory->stride_;
  MUSTER_TRY_ASSIGN(memory->mapped_,
                    net::PeerArena::Map(std::move(descriptor), all + net::kHugePage));
  MUSTER_TRY_ASSIGN(const std::span<std::byte> base, memory->mapped_.At(0, all, kPageBytes));
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
