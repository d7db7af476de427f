#include "common/net/arena.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "common/base/page.h"

namespace muster::net {
namespace {

constexpr std::size_t kAlign = 64;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t RoundUp(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// A memfd whose size can never change again.
Result<Fd> MakeMemory(std::size_t bytes) {
  Fd fd(::memfd_create("muster-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return FromErrno(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ResourceExhausted("arena of {} bytes: {}", bytes, Message(FromErrno(errno, "resize")));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return FromErrno(errno, "seal arena");
  return fd;
}

// What was ever written, to the same places of another file; holes stay holes.
Status CopyData(int from, const std::byte* base, int to) {
  for (off_t at = ::lseek(from, 0, SEEK_DATA); at >= 0; at = ::lseek(from, at, SEEK_DATA)) {
    const off_t end = ::lseek(from, at, SEEK_HOLE);
    if (end < 0) return FromErrno(errno, "read the arena");
    while (at < end) {
      const ssize_t n = ::pwrite(to, base + at, static_cast<std::size_t>(end - at), at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FromErrno(errno, "copy the arena");
      at += n;
    }
  }
  return errno == ENXIO ? Ok() : FromErrno(errno, "read the arena");
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, size_);
}

Result<Arena> Arena::Create(std::size_t bytes, bool shared) {
  Arena arena;
  bytes = RoundUp(std::max<std::size_t>(bytes, 1), kHugePage);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (shared) {
    MUSTER_TRY_ASSIGN(arena.fd_, MakeMemory(bytes));
    flags = MAP_SHARED;
  }
  void* base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, arena.fd_.get(), 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted(
        "cannot reserve {} bytes of address space for tensors: {}; is ulimit -v set?", bytes,
        Message(FromErrno(errno, "mmap")));
  }
  arena.mapping_ = Mapping(static_cast<std::byte*>(base), bytes);
  (void)::madvise(base, bytes, MADV_DONTDUMP);
  return arena;
}

Status Arena::Renew() {
  if (!fd_.valid()) return Ok();
  MUSTER_TRY_ASSIGN(Fd fresh, MakeMemory(size()));
  MUSTER_TRY(CopyData(fd_.get(), base(), fresh.get()));
  void* at = ::mmap(base(), size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                    fresh.get(), 0);
  if (at == MAP_FAILED) return FromErrno(errno, "map the arena anew");
  (void)::madvise(base(), size(), MADV_DONTDUMP);
  for (const std::span<std::byte> memory : huge_) {
    (void)::madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
  }
  fd_ = std::move(fresh);
  return Ok();
}

std::size_t Arena::OffsetOf(const void* in_arena) const {
  return static_cast<std::size_t>(static_cast<const std::byte*>(in_arena) - base());
}

Result<std::span<std::byte>> Arena::AllocateAt(std::size_t bytes, std::size_t align) {
  const std::size_t start = RoundUp(used_, align);
  if (start > size() || bytes > size() - start) {
    return ResourceExhausted("arena of {} bytes is full: {} more wanted, {} used", size(), bytes,
                             used_);
  }
  used_ = start + bytes;
  return std::span(base() + start, bytes);
}

Result<std::span<std::byte>> Arena::Allocate(std::size_t bytes) {
  return AllocateAt(bytes, kAlign);
}

Result<std::span<std::byte>> Arena::AllocateWarm(std::size_t bytes) {
  const bool large = bytes >= kHugePage;
  MUSTER_TRY_ASSIGN(const auto memory, AllocateAt(bytes, large ? kHugePage : kAlign));
  // Advice only: a kernel without huge pages, or without this call, leaves it to the first touch.
  if (large) {
    (void)::madvise(memory.data(), bytes, MADV_HUGEPAGE);
    huge_.push_back(memory);
  }
#ifdef MADV_POPULATE_WRITE
  if (large) (void)::madvise(memory.data(), bytes / kPageBytes * kPageBytes, MADV_POPULATE_WRITE);
#endif
  return memory;
}

std::size_t Arena::Footprint(std::size_t bytes) {
  return bytes + (bytes >= kHugePage ? kHugePage : kAlign);
}

Result<PeerArena> PeerArena::Map(Fd fd, std::size_t limit) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  // Without the seal a peer could shrink the file and end this process with SIGBUS.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return InvalidArgument("arena is not a memfd sealed against shrinking");
  }
  // Huge pages come from a pool of the host's: a touch when that is empty is SIGBUS too.
  struct statfs kind{};
  if (::fstatfs(fd.get(), &kind) != 0) return FromErrno(errno, "fstatfs arena");
  if (kind.f_type != TMPFS_MAGIC) {
    return InvalidArgument("arena is a memfd of kind {:x}, not of ordinary pages",
                           static_cast<unsigned long>(kind.f_type));
  }
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return FromErrno(errno, "fstat arena");
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (info.st_size <= 0 || bytes > limit) {
    return InvalidArgument("arena of {} bytes, allowed 1 to {}", info.st_size, limit);
  }
  void* base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) return FromErrno(errno, "map arena");
  (void)::madvise(base, bytes, MADV_DONTDUMP);
  PeerArena arena;
  arena.mapping_ = Mapping(static_cast<std::byte*>(base), bytes);
  arena.touched_.resize((bytes + kBlock - 1) / kBlock);
  return arena;
}

Result<std::span<std::byte>> PeerArena::At(std::uint64_t offset, std::uint64_t bytes,
                                           std::size_t align) {
  if (bytes > size() || offset > size() - bytes || offset % align != 0) {
    return OutOfRange("arena: {} bytes at offset {} (aligned to {}) of {}", bytes, offset, align,
                      size());
  }
  if (bytes > 0) {
    for (std::size_t b = offset / kBlock; b <= (offset + bytes - 1) / kBlock; ++b) {
      if (touched_[b]) continue;
      touched_[b] = true;
      ++resident_blocks_;
    }
  }
  return std::span(mapping_.base() + offset, bytes);
}

void PeerArena::Release() {
  // On a shared mapping this drops page-table entries only.
  (void)::madvise(mapping_.base(), mapping_.size(), MADV_DONTNEED);
  touched_.assign(touched_.size(), false);
  resident_blocks_ = 0;
}

}  // namespace muster::net
