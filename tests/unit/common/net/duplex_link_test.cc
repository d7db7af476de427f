// A link that sends and receives at once.
#include "common/net/duplex_link.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/net/arena.h"
#include "common/net/socket.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster::net {
namespace {

using namespace std::chrono_literals;

constexpr FrameKind kData = kFirstOfProtocols;

std::pair<Fd, Fd> UnixSockets() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

std::pair<Fd, Fd> TcpSockets() {
  const auto listener = ListenTcp("127.0.0.1:0");
  REQUIRE(listener.ok());
  auto client = ConnectTcp(listener->address, std::chrono::steady_clock::now() + 5s);
  REQUIRE(client.ok());
  auto accepted = Accept(std::span(&*listener, 1), -1, 5s);
  REQUIRE(accepted.ok());
  return {*std::move(client), std::move(accepted->fd)};
}

struct DuplexPair {
  explicit DuplexPair(DuplexLink::Options options = {}, LinkKind kind = LinkKind::kUnix,
                      const Clock& clock = RealClock()) {
    auto [a, b] = kind == LinkKind::kUnix ? UnixSockets() : TcpSockets();
    left = std::make_unique<DuplexLink>(std::move(a), kind, "right", options, clock);
    right = std::make_unique<DuplexLink>(std::move(b), kind, "left", options, clock);
  }
  std::unique_ptr<DuplexLink> left;
  std::unique_ptr<DuplexLink> right;
};

Status SendOn(DuplexLink& link, std::uint64_t request, std::string_view meta,
              std::string_view payload) {
  const KeptBytes part = std::as_bytes(std::span(payload));
  return link.Queue({.kind = kData, .request = request}, std::as_bytes(std::span(meta)),
                    std::span(&part, 1));
}

Status Ignore(const FrameHeader&, std::span<const std::byte>, std::span<const std::byte>) {
  return Ok();
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_CASE("frames that were gathered go out together and arrive in order", "[net][unit]") {
  const LinkKind kind = GENERATE(LinkKind::kUnix, LinkKind::kTcp);
  DuplexPair pair({.payload_crc = true}, kind);
  for (int i = 1; i <= 3; ++i) {
    REQUIRE(SendOn(*pair.left, i, "meta" + std::to_string(i), "payload").ok());
  }
  CHECK(pair.left->unsent() > 3 * kHeaderBytes);
  REQUIRE(pair.left->Flush().value());
  CHECK(pair.left->unsent() == 0);

  std::vector<std::string> got;
  while (got.size() < 3) {
    DuplexLink* const link = pair.right.get();
    WaitForLinks(std::span(&link, 1), -1, std::chrono::steady_clock::now() + 5s, nullptr);
    REQUIRE(link->Receive([&](const FrameHeader& header, auto meta, auto payload) {
                  CHECK(header.request == got.size() + 1);
                  got.push_back(TextOf(meta) + "/" + TextOf(payload));
                  return Ok();
                })
                .ok());
  }

  CHECK(got == std::vector<std::string>{"meta1/payload", "meta2/payload", "meta3/payload"});
}

// Sends `frames` of `bytes` as fast as memory takes them, and reads as many, in one loop.
Status Flood(DuplexLink& link, std::uint64_t frames, std::size_t bytes) {
  const std::string payload(bytes, 'f');
  std::uint64_t received = 0;
  for (std::uint64_t i = 1; i <= frames; ++i) {
    MUSTER_TRY(SendOn(link, i, "", payload));
  }
  const TimePoint deadline = std::chrono::steady_clock::now() + 30s;
  while (received < frames || link.unsent() > 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      return DeadlineExceeded("{} of {} frames, {} bytes unsent", received, frames, link.unsent());
    }
    MUSTER_TRY(link.Flush().status());
    MUSTER_TRY(link.Receive([&](const FrameHeader& header, auto, auto got) {
                     ++received;
                     if (header.request != received || got.size() != bytes) {
                       return Internal("frame {} of {} bytes", header.request, got.size());
                     }
                     return Ok();
                   })
                   .status());
    DuplexLink* const one = &link;
    if (received < frames || link.unsent() > 0)
      WaitForLinks(std::span(&one, 1), -1, deadline, nullptr);
  }
  return Ok();
}

TEST_CASE("two peers that both send far more than the kernel holds do not wait for each other",
          "[net][unit]") {
  const LinkKind kind = GENERATE(LinkKind::kUnix, LinkKind::kTcp);
  DuplexPair pair({.payload_crc = true}, kind);
  Status right;
  std::thread other([&] { right = Flood(*pair.right, 40, 1 << 20); });
  const Status left = Flood(*pair.left, 40, 1 << 20);
  other.join();
  CHECK(ToString(left) == "OK");
  CHECK(ToString(right) == "OK");
}

TEST_CASE("what a peer does not read is bounded", "[net][unit]") {
  DuplexPair pair({.most_unsent = 1 << 20});
  const std::string payload(300'000, 'x');
  Status status;
  int queued = 0;
  for (; queued < 100 && status.ok(); ++queued) status = SendOn(*pair.left, 1, "", payload);
  CHECK(status.code() == StatusCode::kResourceExhausted);
  CHECK(queued == 4);
  // A frame over the bound goes when nothing else waits.
  CHECK(SendOn(*pair.right, 1, "", std::string(2 << 20, 'y')).ok());
}

TEST_CASE("a peer that stands still is told from one that is quiet", "[net][unit]") {
  FakeScheduler clock;
  DuplexPair pair({.ping_every = 1s, .silence = 3s}, LinkKind::kUnix, clock);
  REQUIRE(SendOn(*pair.right, 1, "", "").ok());
  REQUIRE(pair.right->Flush().ok());
  REQUIRE(pair.left->Receive(Ignore).value() == 1);

  for (int i = 0; i < 20; ++i) {  // it answers pings
    clock.Advance(1s);
    REQUIRE(pair.left->Tick().ok());
    REQUIRE(pair.right->Receive(Ignore).ok());
    REQUIRE(pair.left->Receive(Ignore).ok());
    REQUIRE(pair.left->Tick().ok());
  }
  clock.Advance(1s);
  REQUIRE(pair.left->Tick().ok());
  CHECK(pair.left->next_tick() == clock.Now() + 3s);
  clock.Advance(2'999ms);
  REQUIRE(pair.left->Receive(Ignore).value() == 0);
  REQUIRE(pair.left->Tick().ok());
  clock.Advance(1ms);
  const Status silent = pair.left->Tick();

  CHECK(silent.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(silent) == "right answers nothing, not a ping either, for 4000 ms");
}

TEST_CASE("a peer that takes long over what was queued before a ping does not stand still",
          "[net][unit]") {
  FakeScheduler clock;
  DuplexPair pair({.ping_every = 1s, .silence = 3s}, LinkKind::kUnix, clock);
  REQUIRE(SendOn(*pair.right, 1, "", "").ok());
  REQUIRE(pair.right->Flush().ok());
  REQUIRE(pair.left->Receive(Ignore).ok());
  REQUIRE(SendOn(*pair.left, 1, "", std::string(std::size_t{32} << 20, 'x')).ok());
  REQUIRE(pair.left->Flush().ok());

  for (int i = 0; i < 6; ++i) {
    clock.Advance(1s);
    REQUIRE(pair.right->Receive(Ignore).value() == 0);
    REQUIRE(pair.left->Flush().ok());
    REQUIRE(pair.left->Receive(Ignore).value() == 0);
    REQUIRE(pair.left->Tick().ok());
  }
  CHECK(pair.left->unsent() > 0);
  CHECK(pair.left->next_tick() == clock.Now() + 3s);
  clock.Advance(3s);  // it takes nothing

  CHECK(pair.left->Tick().code() == StatusCode::kDeadlineExceeded);
}

TEST_CASE("a link that is full asks its peer still and needs no room to answer", "[net][unit]") {
  FakeScheduler clock;
  DuplexPair pair({.most_unsent = 1 << 20, .ping_every = 1s, .silence = 3s}, LinkKind::kUnix,
                  clock);
  REQUIRE(SendOn(*pair.right, 1, "", "").ok());
  REQUIRE(pair.right->Queue({.kind = kPing}, {}, {}).ok());
  REQUIRE(pair.right->Flush().ok());
  REQUIRE(SendOn(*pair.left, 1, "", std::string(std::size_t{8} << 20, 'x')).ok());
  REQUIRE(pair.left->Receive(Ignore).value() == 2);
  const std::size_t waits = pair.left->unsent();

  clock.Advance(1s);
  REQUIRE(pair.left->Tick().ok());

  CHECK(waits > std::size_t{8} << 20);
  CHECK(pair.left->next_tick() == clock.Now() + 3s);
}

TEST_CASE("who was away reads the answer before it blames the peer", "[net][unit]") {
  FakeScheduler clock;
  DuplexPair pair({.ping_every = 1s, .silence = 3s}, LinkKind::kUnix, clock);
  REQUIRE(SendOn(*pair.right, 1, "", "").ok());
  REQUIRE(pair.right->Flush().ok());
  REQUIRE(pair.left->Receive(Ignore).ok());
  clock.Advance(1s);
  REQUIRE(pair.left->Tick().ok());
  REQUIRE(pair.right->Receive(Ignore).ok());

  clock.Advance(60s);  // a long closure on this thread

  REQUIRE(pair.left->Receive(Ignore).value() == 1);
  CHECK(pair.left->Tick().ok());
}

TEST_CASE("a connection that is torn says whether a frame was cut", "[net][unit]") {
  {
    DuplexPair pair;
    pair.left.reset();
    CHECK(pair.right->Receive(Ignore).status().code() == StatusCode::kUnavailable);
  }
  auto [a, b] = UnixSockets();
  DuplexLink link(std::move(b), LinkKind::kUnix, "peer", {});
  std::array<std::byte, kHeaderBytes> header{};
  EncodeHeader({.kind = kData, .meta_bytes = 100}, header);
  REQUIRE(::write(a.get(), header.data(), header.size()) == ssize_t{kHeaderBytes});
  CHECK(link.Receive(Ignore).value() == 0);
  a.Reset();
  const Status cut = link.Receive(Ignore).status();
  CHECK(cut.code() == StatusCode::kDataLoss);
  CHECK(Message(cut) == "peer closed the connection inside a frame, 80 bytes of which came");
}

TEST_CASE("damaged meta and payload are found and no length is believed", "[net][unit]") {
  auto [a, b] = UnixSockets();
  DuplexLink link(std::move(b), LinkKind::kUnix, "peer",
                  {.limits = {.meta_bytes = 64, .payload_bytes = 64}});
  std::array<std::byte, kHeaderBytes + 4> frame{};
  StatusCode expected = StatusCode::kDataLoss;
  SECTION("meta") {
    EncodeHeader({.kind = kData, .meta_bytes = 4, .meta_crc = 1},
                 std::span(frame).first<kHeaderBytes>());
  }
  SECTION("payload") {
    EncodeHeader({.kind = kData, .flags = kFlagPayloadCrc, .payload_bytes = 4, .payload_crc = 1},
                 std::span(frame).first<kHeaderBytes>());
  }
  SECTION("length") {
    EncodeHeader({.kind = kData, .payload_bytes = std::uint64_t{1} << 60},
                 std::span(frame).first<kHeaderBytes>());
    expected = StatusCode::kResourceExhausted;
  }
  REQUIRE(::write(a.get(), frame.data(), frame.size()) == ssize_t{frame.size()});
  CHECK(link.Receive(Ignore).status().code() == expected);
}

TEST_CASE("shutting down ends the peer's wait and refuses new frames", "[net][unit]") {
  DuplexPair pair;
  pair.left->ShutDown();
  CHECK(SendOn(*pair.left, 1, "", "").code() == StatusCode::kUnavailable);
  CHECK(pair.right->Receive(Ignore).status().code() == StatusCode::kUnavailable);
}

TEST_CASE("an arena's descriptor goes along with its frame", "[net][unit]") {
  DuplexPair pair;
  auto arena = Arena::Create(1 << 20, true);
  REQUIRE(arena.ok());
  arena->base()[5] = std::byte{42};
  REQUIRE(SendOn(*pair.left, 1, "before", "").ok());
  REQUIRE(pair.left->Queue({.kind = kArena, .request = 2}, {}, {}, Fd(::dup(arena->fd()))).ok());
  REQUIRE(SendOn(*pair.left, 3, "after", "").ok());
  REQUIRE(pair.left->Flush().value());

  int arenas = 0;
  std::uint64_t frames = 0;
  while (frames < 3) {
    const auto got = pair.right->Receive([&](const FrameHeader& header, auto, auto) {
      if (header.kind != kArena) return Ok();
      auto mapped = PeerArena::Map(pair.right->TakeDescriptor(), std::size_t{1} << 30);
      REQUIRE(ToString(mapped.status()) == "OK");
      CHECK((*mapped->At(0, 64, 1))[5] == std::byte{42});
      ++arenas;
      return Ok();
    });
    REQUIRE(got.ok());
    frames += *got;
  }

  CHECK(arenas == 1);
  CHECK_FALSE(pair.right->TakeDescriptor().valid());
}

// Numbers that differ from one place to the next.
KeptBytes Pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>((i / 251 + i) * seed);
  return KeptBytes::Of(std::move(all));
}

// Both ends' leaders in one thread, until `frames` have come.
Status Pass(DuplexPair& pair, std::uint64_t frames, DuplexLink::Handler handler) {
  std::uint64_t got = 0;
  const TimePoint deadline = std::chrono::steady_clock::now() + 30s;
  while (got < frames) {
    if (std::chrono::steady_clock::now() > deadline) return DeadlineExceeded("{} frames", got);
    MUSTER_TRY(pair.left->Flush().status());
    MUSTER_TRY_ASSIGN(const std::size_t more, pair.right->Receive(handler));
    got += more;
  }
  return Ok();
}

TEST_CASE("a long payload is sent from where it lies, and is the receiver's to keep",
          "[net][unit]") {
  const LinkKind kind = GENERATE(LinkKind::kUnix, LinkKind::kTcp);
  DuplexPair pair({.payload_crc = true}, kind);
  const KeptBytes expected = Pattern(3 * kLongBytes + 17, 3);
  auto sent = std::make_optional(KeptBytes::CopyOf(expected));
  const std::weak_ptr<const std::byte[]> held = sent->Hold();
  // Before and behind it in one frame is what is copied.
  const std::string before = "before";
  const std::string behind(100'000, 'b');
  const std::array<KeptBytes, 3> parts{std::as_bytes(std::span(before)), *sent,
                                       std::as_bytes(std::span(behind))};
  REQUIRE(SendOn(*pair.left, 1, "first", "short").ok());
  REQUIRE(pair.left->Queue({.kind = kData, .request = 2}, {}, parts).ok());
  REQUIRE(SendOn(*pair.left, 3, "last", "short").ok());
  CHECK(pair.left->unsent() > expected.size() + behind.size());
  sent.reset();
  const_cast<KeptBytes&>(parts[1]) = {};
  CHECK_FALSE(held.expired());

  std::vector<std::uint64_t> order;
  KeptBytes kept;
  const std::byte* place = nullptr;
  const Status passed = Pass(pair, 3, [&](const FrameHeader& header, auto, const KeptBytes& got) {
    order.push_back(header.request);
    if (header.request == 2) {
      place = got.data();
      kept = got.Kept();
    } else {
      CHECK(TextOf(got) == "short");
      CHECK(got.Hold() == nullptr);
    }
    return Ok();
  });
  CHECK(ToString(passed) == "OK");
  CHECK(held.expired());
  CHECK(pair.left->unsent() == 0);
  pair.left.reset();
  pair.right.reset();

  CHECK(order == std::vector<std::uint64_t>{1, 2, 3});
  CHECK(kept.data() == place);
  REQUIRE(kept.size() == before.size() + expected.size() + behind.size());
  CHECK(TextOf(kept.view().first(before.size())) == before);
  CHECK(std::ranges::equal(kept.view().subspan(before.size(), expected.size()), expected));
  CHECK(TextOf(kept.view().last(behind.size())) == behind);
}

TEST_CASE("held bytes count as unsent, and go with a link that is closed", "[net][unit]") {
  DuplexPair pair({.most_unsent = 20 * kLongBytes});
  auto bytes = std::make_optional(KeptBytes::CopyOf(Pattern(16 * kLongBytes, 1)));
  const std::weak_ptr<const std::byte[]> held = bytes->Hold();
  REQUIRE(pair.left->Queue({.kind = kData}, {}, {&*bytes, 1}).ok());
  CHECK(pair.left->Queue({.kind = kData}, {}, {&*bytes, 1}).code() ==
        StatusCode::kResourceExhausted);
  bytes.reset();
  CHECK_FALSE(pair.left->Flush().value());
  CHECK_FALSE(held.expired());
  CHECK(pair.left->unsent() < 16 * kLongBytes);
  pair.left.reset();
  CHECK(held.expired());
}

TEST_CASE("a descriptor behind a long frame comes with its own frame", "[net][unit]") {
  DuplexPair pair;
  auto arena = Arena::Create(1 << 20, true);
  REQUIRE(arena.ok());
  arena->base()[5] = std::byte{42};
  const KeptBytes large = Pattern(2 * kLongBytes, 5);
  for (std::uint64_t i = 0; i < 3; ++i) {
    REQUIRE(pair.left->Queue({.kind = kData, .request = 2 * i}, {}, {&large, 1}).ok());
    REQUIRE(pair.left->Queue({.kind = kArena, .request = 2 * i + 1}, {}, {}, Fd(::dup(arena->fd())))
                .ok());
  }

  int arenas = 0;
  std::uint64_t next = 0;
  const Status passed = Pass(pair, 6, [&](const FrameHeader& header, auto, const KeptBytes& got) {
    CHECK(header.request == next++);
    if (header.kind == kData) {
      CHECK(std::ranges::equal(got, large));
      return Ok();
    }
    auto mapped = PeerArena::Map(pair.right->TakeDescriptor(), std::size_t{1} << 30);
    REQUIRE(ToString(mapped.status()) == "OK");
    CHECK((*mapped->At(0, 64, 1))[5] == std::byte{42});
    ++arenas;
    return Ok();
  });

  CHECK(ToString(passed) == "OK");
  CHECK(arenas == 3);
}

TEST_CASE("a long payload that is damaged or cut is never handed over", "[net][unit]") {
  auto [a, b] = UnixSockets();
  DuplexLink link(std::move(b), LinkKind::kUnix, "peer", {});
  std::array<std::byte, kHeaderBytes> header{};
  const std::string meta = "meta";
  EncodeHeader({.kind = kData,
                .flags = kFlagPayloadCrc,
                .meta_bytes = 4,
                .payload_bytes = kLongBytes,
                .meta_crc = Crc32c(std::as_bytes(std::span(meta))),
                .payload_crc = 1},
               header);
  const auto feed = [&, &to = a](std::span<const std::byte> bytes) {
    Status status;
    while (!bytes.empty() && status.ok()) {
      const ssize_t n = ::write(to.get(), bytes.data(), bytes.size());
      if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
      status = link.Receive([](const FrameHeader&, auto, const KeptBytes&) {
                     return Internal("it was handed over");
                   })
                   .status();
    }
    return status;
  };
  const std::vector<std::byte> payload(kLongBytes, std::byte{1});
  REQUIRE(feed(header).ok());
  REQUIRE(feed(std::as_bytes(std::span(meta))).ok());
  REQUIRE(feed(std::span(payload).first(kLongBytes - 1)).ok());
  SECTION("damaged") {
    CHECK(Message(feed(std::span(payload).last(1))) ==
          "peer: frame 0: payload of 524288 bytes fails its checksum");
  }
  SECTION("cut") {
    a.Reset();
    const Status cut = link.Receive(Ignore).status();
    CHECK(cut.code() == StatusCode::kDataLoss);
    CHECK(Message(cut) == "peer closed the connection inside a frame, 524371 bytes of which came");
  }
}

TEST_CASE("a wait ends when somebody wakes it", "[net][unit]") {
  DuplexPair pair;
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const Fd reads(pipe[0]);
  const Fd writes(pipe[1]);
  std::thread waker([&] { CHECK(::write(writes.get(), "w", 1) == 1); });
  DuplexLink* const link = pair.left.get();

  WaitForLinks(std::span(&link, 1), reads.get(), TimePoint::max(), nullptr);

  waker.join();
  char woken = 0;
  CHECK(::read(reads.get(), &woken, 1) == 1);
}

}  // namespace
}  // namespace muster::net
