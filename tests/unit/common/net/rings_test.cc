// Bytes through shared memory beside a socket: order, sleeping and waking, ends, and peers that
// lie.
#include "common/net/rings.h"

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/real_clock.h"
#include "common/net/socket.h"
#include "tests/support/catch.h"
#include "tests/unit/common/net/deadline.h"

namespace muster::net {
namespace {

Fd DuplicateOf(int fd) { return Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// Two sockets of this process that use rings.
struct RingPair {
  std::unique_ptr<Socket> a;
  std::unique_ptr<Socket> b;
  // The memory, as the maker's process could map it anywhere.
  Fd memory;

  explicit RingPair(SpinMode spin = SpinMode::kOff) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
    a = std::make_unique<Socket>(Fd(ends[0]), LinkKind::kUnix, "b", spin, nullptr);
    b = std::make_unique<Socket>(Fd(ends[1]), LinkKind::kUnix, "a", spin, nullptr);
    auto made = Rings::Create();
    REQUIRE(made.ok());
    memory = DuplicateOf(made->fd());
    auto mapped = Rings::Map(DuplicateOf(made->fd()));
    REQUIRE(mapped.ok());
    a->UseRings(*std::move(made));
    b->UseRings(*std::move(mapped));
  }
};

iovec RingPart(std::span<const std::byte> bytes) {
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
}

Status WriteRing(Socket& socket, std::span<const std::byte> bytes, TimePoint deadline = Soon()) {
  iovec part = RingPart(bytes);
  return WriteAll(socket, RealClock(), std::span(&part, 1), deadline);
}

Status ReadRing(Socket& socket, std::span<std::byte> into) {
  while (!into.empty()) {
    MUSTER_TRY_ASSIGN(const std::size_t n, socket.Read(into, Soon(), nullptr));
    if (n == 0) return Unavailable("it ended");
    into = into.subspan(n);
  }
  return Ok();
}

std::vector<std::byte> NumberedBytes(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

}  // namespace

TEST_CASE("bytes of any lengths pass through rings in order, both ways, however the sides wait",
          "[net][unit]") {
  const SpinMode spin = GENERATE(SpinMode::kOff, SpinMode::kAdaptive, SpinMode::kAlways);
  RingPair pair(spin);
  constexpr int kMessages = 300;
  const std::vector<std::byte> sent = NumberedBytes(3 * Rings::kBytes);
  const auto lengths = [&sent] {
    std::mt19937 random(7);
    std::vector<std::size_t> all;
    for (int i = 0; i < kMessages; ++i) {
      all.push_back(i % 10 == 0 ? sent.size() : 1 + random() % 5000);
    }
    return all;
  }();
  Status echoed;
  std::thread other([&] {
    std::vector<std::byte> got(sent.size());
    for (const std::size_t n : lengths) {
      echoed = ReadRing(*pair.b, std::span(got).first(n));
      if (echoed.ok()) echoed = WriteRing(*pair.b, std::span(got).first(n));
      if (!echoed.ok()) return;
    }
  });
  std::vector<std::byte> got(sent.size());
  Status status;
  bool equal = true;
  for (const std::size_t n : lengths) {
    if (status.ok()) status = WriteRing(*pair.a, std::span(sent).first(n));
    if (status.ok()) status = ReadRing(*pair.a, std::span(got).first(n));
    if (!status.ok()) break;
    equal = equal && std::memcmp(got.data(), sent.data(), n) == 0;
  }
  if (!status.ok()) pair.a->ShutDown();
  other.join();
  CHECK(status.ok());
  CHECK(echoed.ok());
  CHECK(equal);
  // What the kernel carried are wakes, a byte each.
  const std::size_t all = std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
  CHECK(pair.a->bytes() < all / 20);
}

TEST_CASE("a wait at a ring ends at its deadline, for bytes and for room", "[net][unit]") {
  RingPair pair;
  std::array<std::byte, 16> some{};
  const TimePoint soon = std::chrono::steady_clock::now() + Millis(20);
  CHECK(pair.a->Read(some, soon, nullptr).status().code() == StatusCode::kDeadlineExceeded);
  const Status full = WriteRing(*pair.a, NumberedBytes(Rings::kBytes + 1),
                                std::chrono::steady_clock::now() + Millis(20));
  CHECK(full.code() == StatusCode::kDeadlineExceeded);
  CHECK(std::chrono::steady_clock::now() >= soon);
}

TEST_CASE("wakes for nothing do not move the deadline of a wait at a ring", "[net][unit]") {
  RingPair pair;
  std::atomic<bool> stop{false};
  std::thread waker([&] {
    const std::byte wake{1};
    while (!stop) (void)::send(pair.b->fd(), &wake, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  });
  std::array<std::byte, 16> some{};
  const auto got = pair.a->Read(some, std::chrono::steady_clock::now() + Millis(20), nullptr);
  stop = true;
  waker.join();
  CHECK(got.status().code() == StatusCode::kDeadlineExceeded);
}

TEST_CASE("what a peer wrote before its end is read from the ring, then its end", "[net][unit]") {
  RingPair pair;
  const std::vector<std::byte> sent = NumberedBytes(1000);
  REQUIRE(WriteRing(*pair.b, sent).ok());
  pair.b.reset();
  std::vector<std::byte> got(sent.size());
  REQUIRE(ReadRing(*pair.a, got).ok());
  CHECK(got == sent);
  const auto end = pair.a->Read(got, Soon(), nullptr);
  REQUIRE(end.ok());
  CHECK(*end == 0);
  CHECK(WriteRing(*pair.a, sent).code() == StatusCode::kUnavailable);
}

TEST_CASE("a peer that ends ends the wait for its bytes and for its room", "[net][unit]") {
  const bool reading = GENERATE(true, false);
  RingPair pair;
  if (!reading) REQUIRE(WriteRing(*pair.a, NumberedBytes(Rings::kBytes)).ok());
  std::thread leaver([&] { pair.b.reset(); });
  std::array<std::byte, 16> some{};
  if (reading) {
    const auto end = pair.a->Read(some, Soon(), nullptr);
    CHECK((end.ok() && *end == 0));
  } else {
    CHECK(WriteRing(*pair.a, some).code() == StatusCode::kUnavailable);
  }
  leaver.join();
}

TEST_CASE("a socket that is shut down reads no more, though its ring goes on", "[net][unit]") {
  RingPair pair;
  REQUIRE(WriteRing(*pair.b, NumberedBytes(1000)).ok());
  pair.a->ShutDown();
  std::array<std::byte, 16> some{};
  const auto end = pair.a->Read(some, Soon(), nullptr);
  REQUIRE(end.ok());
  CHECK(*end == 0);
}

TEST_CASE("counters that no honest peer has are an error, and nothing outside is read",
          "[net][unit]") {
  RingPair pair;
  auto theirs = PeerArena::Map(std::move(pair.memory), std::size_t{1} << 30);
  REQUIRE(theirs.ok());
  // Every word is made a number that no ring can have; the first lines are the counters.
  auto words = theirs->At(0, 128, 64);
  REQUIRE(words.ok());
  std::memset(words->data(), 0x7f, words->size());
  std::array<std::byte, 16> some{};
  CHECK(pair.b->Read(some, Soon(), nullptr).status().code() == StatusCode::kDataLoss);
  CHECK(WriteRing(*pair.a, NumberedBytes(Rings::kBytes + 1)).code() == StatusCode::kDataLoss);
}

TEST_CASE("memory that may shrink, or is too small, is no ring", "[net][unit]") {
  Fd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(loose.get(), 1 << 20) == 0);
  CHECK(Rings::Map(std::move(loose)).status().code() == StatusCode::kInvalidArgument);
  Fd small(::memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(small.get(), 4096) == 0);
  REQUIRE(::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  CHECK(Rings::Map(std::move(small)).status().code() == StatusCode::kOutOfRange);
}

}  // namespace muster::net
