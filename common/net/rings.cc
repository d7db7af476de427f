#include "common/net/rings.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

namespace muster::net {
namespace {

// Lines of the processor's cache, so that neither side writes where the other one looks.
constexpr std::size_t kLine = 64;
// Sizes are rounded up to huge pages; memory is used where it is touched.
constexpr std::size_t kLargest = 2 * kHugePage;

}  // namespace

// Bytes [read, written) of an endless stream stand at their numbers modulo kBytes.
struct Rings::Direction {
  alignas(kLine) std::atomic<std::uint64_t> written;
  alignas(kLine) std::atomic<std::uint64_t> read;
  alignas(kLine) std::array<std::byte, kBytes> bytes;
};

// Fresh memory is zeros: empty rings, and nobody sleeps.
struct Rings::Shared {
  std::array<Direction, 2> directions;
  struct alignas(kLine) Sleeper {
    std::atomic<std::uint32_t> sleep;
  };
  // The maker's, and the peer's.
  std::array<Sleeper, 2> sleepers;
};

static_assert((Rings::kBytes & (Rings::kBytes - 1)) == 0);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

Rings::Rings(std::variant<Arena, PeerArena> memory, std::byte* base, bool maker)
    : memory_(std::move(memory)),
      shared_(reinterpret_cast<Shared*>(base)),
      in_(&shared_->directions[maker ? 1 : 0]),
      out_(&shared_->directions[maker ? 0 : 1]),
      self_(maker ? 0 : 1) {}

Result<Rings> Rings::Create() {
  MUSTER_TRY_ASSIGN(Arena arena, Arena::Create(sizeof(Shared), /*shared=*/true));
  std::byte* const base = arena.base();
  return Rings(std::move(arena), base, /*maker=*/true);
}

Result<Rings> Rings::Map(Fd fd) {
  MUSTER_TRY_ASSIGN(PeerArena arena, PeerArena::Map(std::move(fd), kLargest));
  MUSTER_TRY_ASSIGN(const auto memory, arena.At(0, sizeof(Shared), kLine));
  return Rings(std::move(arena), memory.data(), /*maker=*/false);
}

int Rings::fd() const {
  const Arena* const made = std::get_if<Arena>(&memory_);
  return made == nullptr ? -1 : made->fd();
}

std::uint64_t Rings::Waiting() const {
  return in_->written.load(std::memory_order_acquire) - read_;
}

std::uint64_t Rings::Unread() const {
  return written_ - out_->read.load(std::memory_order_acquire);
}

Result<std::size_t> Rings::Read(std::span<std::byte> into) {
  const std::uint64_t waiting = Waiting();
  if (waiting > kBytes) return DataLoss("{} bytes in a ring of {}", waiting, kBytes);
  const std::size_t n = std::min<std::uint64_t>(into.size(), waiting);
  if (n == 0) return n;
  const std::size_t at = read_ % kBytes;
  const std::size_t first = std::min(n, kBytes - at);
  std::memcpy(into.data(), in_->bytes.data() + at, first);
  std::memcpy(into.data() + first, in_->bytes.data(), n - first);
  read_ += n;
  // In one order with what a sleeper says and sees: one of both sides notices the other.
  in_->read.store(read_, std::memory_order_seq_cst);
  PrepareWrite();
  return n;
}

// How far the peer has read is looked up, at the cost of a line of its cache, only when that
// matters.
Result<std::size_t> Rings::Write(std::span<const iovec> parts) {
  std::size_t wanted = 0;
  for (const iovec& part : parts) wanted += part.iov_len;
  if (wanted > kBytes - (written_ - seen_read_)) {
    const std::uint64_t unread = Unread();
    if (unread > kBytes) return DataLoss("{} unread bytes in a ring of {}", unread, kBytes);
    seen_read_ = written_ - unread;
  }
  std::size_t room = kBytes - (written_ - seen_read_);
  std::size_t taken = 0;
  for (const iovec& part : parts) {
    const auto* from = static_cast<const std::byte*>(part.iov_base);
    const std::size_t n = std::min(part.iov_len, room);
    const std::size_t at = (written_ + taken) % kBytes;
    const std::size_t first = std::min(n, kBytes - at);
    if (n > 0) std::memcpy(out_->bytes.data() + at, from, first);
    if (n > first) std::memcpy(out_->bytes.data(), from + first, n - first);
    taken += n;
    room -= n;
    if (room == 0) break;
  }
  if (taken == 0) return taken;
  written_ += taken;
  // The first store lets the peer see it as soon as the bytes have left; the second one waits until
  // they have, which is what makes one order of this and of sleeping.
  out_->written.store(written_, std::memory_order_release);
  out_->written.store(written_, std::memory_order_seq_cst);
  return taken;
}

void Rings::PrepareWrite() const {
  // A small message, and the counter.
  for (std::size_t ahead = 0; ahead < 3 * kLine; ahead += kLine) {
    __builtin_prefetch(out_->bytes.data() + (written_ + ahead) % kBytes, 1);
  }
  __builtin_prefetch(&out_->written, 1);
}

bool Rings::Ready(Sleep wanted) const {
  return wanted == Sleep::kForBytes ? Waiting() != 0 : Unread() != kBytes;
}

bool Rings::MaySleep(Sleep wanted) {
  shared_->sleepers[self_].sleep.store(static_cast<std::uint32_t>(wanted),
                                       std::memory_order_seq_cst);
  const std::uint64_t theirs =
      wanted == Sleep::kForBytes ? in_->written.load(std::memory_order_seq_cst) - read_
                                 : kBytes - (written_ - out_->read.load(std::memory_order_seq_cst));
  return theirs == 0;
}

void Rings::EndSleep() {
  shared_->sleepers[self_].sleep.store(static_cast<std::uint32_t>(Sleep::kNot),
                                       std::memory_order_relaxed);
}

bool Rings::PeerSleeps(Sleep wanted) {
  std::atomic<std::uint32_t>& sleep = shared_->sleepers[1 - self_].sleep;
  auto expected = static_cast<std::uint32_t>(wanted);
  if (sleep.load(std::memory_order_seq_cst) != expected) return false;
  return sleep.compare_exchange_strong(expected, static_cast<std::uint32_t>(Sleep::kNot),
                                       std::memory_order_seq_cst);
}

}  // namespace muster::net
