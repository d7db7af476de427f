// Arenas and the stage pool.
#include <atomic>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/net/arena.h"
#include "common/net/host_id.h"
#include "common/net/stage_pool.h"
#include "tests/support/catch.h"
#include "tests/unit/common/net/deadline.h"

namespace muster::net {
namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kLimit = std::size_t{1} << 40;

TimePoint Now() { return std::chrono::steady_clock::now(); }
PeerArena MapOf(const Arena& arena) {
  auto peer = PeerArena::Map(Fd(::dup(arena.fd())), kLimit);
  REQUIRE(peer.ok());
  return *std::move(peer);
}

}  // namespace

TEST_CASE("both sides of an arena see the same bytes", "[net][unit]") {
  auto arena = Arena::Create(10 * kMiB, true);
  REQUIRE(arena.ok());
  auto memory = arena->AllocateWarm(4 * kMiB);
  REQUIRE(memory.ok());
  PeerArena peer = MapOf(*arena);

  std::memcpy(memory->data() + 100, "hello", 5);
  const auto seen = peer.At(arena->OffsetOf(memory->data()) + 100, 5, 1);

  REQUIRE(seen.ok());
  CHECK(std::memcmp(seen->data(), "hello", 5) == 0);
  peer.Release();
  CHECK(peer.resident() == 0);
  const auto again = peer.At(arena->OffsetOf(memory->data()) + 100, 5, 1);
  REQUIRE(again.ok());
  CHECK(std::memcmp(again->data(), "hello", 5) == 0);
}

TEST_CASE("an arena's size can never change", "[net][unit]") {
  auto arena = Arena::Create(4 * kMiB, true);
  REQUIRE(arena.ok());

  CHECK(::ftruncate(arena->fd(), 4096) != 0);
  CHECK(::ftruncate(arena->fd(), 8 * kMiB) != 0);
  CHECK(::fcntl(arena->fd(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
}

TEST_CASE("memory that its maker could shrink is not mapped", "[net][unit]") {
  Fd plain(::memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(plain.get(), 4096) == 0);
  CHECK(PeerArena::Map(Fd(::dup(plain.get())), kLimit).status().code() ==
        StatusCode::kInvalidArgument);

  auto arena = Arena::Create(4 * kMiB, true);
  REQUIRE(arena.ok());
  CHECK(PeerArena::Map(Fd(::dup(arena->fd())), kMiB).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(PeerArena::Map(Fd(::open("/dev/null", O_RDWR)), kLimit).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("memory of huge pages, which a touch may not find, is not mapped", "[net][unit]") {
  Fd huge(::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!huge.valid()) return;  // a kernel without them
  REQUIRE(::ftruncate(huge.get(), 4 * kMiB) == 0);
  REQUIRE(::fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);

  const auto mapped = PeerArena::Map(std::move(huge), kLimit);

  CHECK(mapped.status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a renewed arena has its contents where they were, who mapped it before sees no more",
          "[net][unit]") {
  auto arena = Arena::Create(64 * kMiB, true);
  REQUIRE(arena.ok());
  auto memory = arena->AllocateWarm(4 * kMiB);
  auto far = arena->Allocate(32 * kMiB);
  REQUIRE(memory.ok());
  REQUIRE(far.ok());
  std::memcpy(memory->data() + 100, "before", 6);
  std::memcpy(far->data() + 31 * kMiB, "far", 3);
  PeerArena old = MapOf(*arena);
  const auto seen = old.At(arena->OffsetOf(memory->data()) + 100, 6, 1);
  REQUIRE(seen.ok());

  REQUIRE(arena->Renew().ok());
  PeerArena fresh = MapOf(*arena);

  CHECK(std::memcmp(memory->data() + 100, "before", 6) == 0);
  CHECK(std::memcmp(far->data() + 31 * kMiB, "far", 3) == 0);
  std::memcpy(memory->data() + 100, "after!", 6);
  CHECK(std::memcmp(seen->data(), "before", 6) == 0);
  const auto now = fresh.At(arena->OffsetOf(memory->data()) + 100, 6, 1);
  REQUIRE(now.ok());
  CHECK(std::memcmp(now->data(), "after!", 6) == 0);
}

TEST_CASE("no offset leads out of an arena", "[net][unit]") {
  auto arena = Arena::Create(2 * kMiB, true);
  REQUIRE(arena.ok());
  PeerArena peer = MapOf(*arena);

  CHECK(peer.At(0, 2 * kMiB, 4).ok());
  CHECK(peer.At(2 * kMiB, 0, 4).ok());
  CHECK(peer.At(2 * kMiB, 1, 4).status().code() == StatusCode::kOutOfRange);
  CHECK(peer.At(4, 2 * kMiB, 4).status().code() == StatusCode::kOutOfRange);
  CHECK(peer.At(~std::uint64_t{3}, 8, 4).status().code() == StatusCode::kOutOfRange);
  CHECK(peer.At(8, ~std::uint64_t{3}, 4).status().code() == StatusCode::kOutOfRange);
  CHECK(peer.At(2, 4, 4).status().code() == StatusCode::kOutOfRange);
}

TEST_CASE("what a peer has touched is counted in blocks, once", "[net][unit]") {
  auto arena = Arena::Create(64 * kMiB, true);
  REQUIRE(arena.ok());
  PeerArena peer = MapOf(*arena);

  for (int i = 0; i < 3; ++i) REQUIRE(peer.At(0, 8 * kMiB, 1).ok());

  CHECK(peer.resident() == 8 * kMiB);
}

TEST_CASE("an arena that is full says so", "[net][unit]") {
  auto arena = Arena::Create(2 * kMiB, false);
  REQUIRE(arena.ok());
  REQUIRE(arena->Allocate(kMiB).ok());

  CHECK(arena->Allocate(kMiB + 1).status().code() == StatusCode::kResourceExhausted);
  CHECK(arena->Allocate(kMiB).ok());
}

TEST_CASE("the stage pool waits for room and names who holds it", "[net][unit]") {
  StagePool pool(4 * kMiB);
  auto first = std::make_unique<Result<StagePool::Lease>>(pool.Take(3 * kMiB, Soon()));
  REQUIRE(first->ok());

  const auto refused = pool.Take(3 * kMiB, Now());
  CHECK(refused.status().code() == StatusCode::kResourceExhausted);
  std::thread other([&] { first.reset(); });
  const auto granted = pool.Take(3 * kMiB, Soon());
  other.join();

  CHECK(granted.ok());
  CHECK(pool.held() <= 4 * kMiB);
}

TEST_CASE("more than the whole pool is lent when nothing else is", "[net][unit]") {
  StagePool pool(kMiB);
  {
    const auto large = pool.Take(5 * kMiB, Soon());
    REQUIRE(large.ok());
    CHECK(large->bytes().size() == 5 * kMiB);
    CHECK_FALSE(pool.Take(1, Now()).ok());
  }

  CHECK(pool.Take(1, Now()).ok());
  CHECK(pool.held() <= kMiB);
}

TEST_CASE("transfers that wait for room get it in their order", "[net][unit]") {
  StagePool pool(4 * kMiB);
  auto first = std::make_unique<Result<StagePool::Lease>>(pool.Take(kMiB, Soon()));
  REQUIRE(first->ok());
  std::atomic<bool> granted{false};
  // More than the whole pool: it waits until nothing else is lent.
  std::thread large([&] { granted = pool.Take(8 * kMiB, Soon()).ok(); });
  while (pool.waiting() == 0) std::this_thread::yield();

  // There is room for this one, but others like it could keep the large one out for ever.
  const Status later = pool.Take(kMiB, Now()).status();
  CHECK(later.code() == StatusCode::kResourceExhausted);
  CHECK(
      Message(later).find("of the stage budget's 4194304 are in use, and 1 other transfer waits") !=
      std::string::npos);
  first.reset();
  large.join();
  CHECK(granted);
  CHECK(pool.waiting() == 0);
}

TEST_CASE("a transfer that gives up waiting makes way for those behind it", "[net][unit]") {
  StagePool pool(4 * kMiB);
  const auto first = pool.Take(kMiB, Soon());
  REQUIRE(first.ok());
  std::atomic<bool> refused{false};
  std::thread large(
      [&] { refused = !pool.Take(8 * kMiB, Now() + std::chrono::milliseconds(50)).ok(); });
  while (pool.waiting() == 0 && !refused) std::this_thread::yield();

  const auto behind = pool.Take(kMiB, Soon());
  large.join();
  CHECK(refused);
  CHECK(behind.ok());
}

TEST_CASE("the host id is the same for the whole process", "[net][unit]") {
  const auto id = HostId();

  REQUIRE(id.ok());
  CHECK(id->size() > 36);
  CHECK(*id == *HostId());
}

}  // namespace muster::net
