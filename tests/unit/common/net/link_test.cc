// What a Link promises, by the real one and by the tests' own; what a Channel says of slow peers.
#include "common/net/link.h"

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "common/base/real_clock.h"
#include "common/net/channel.h"
#include "common/net/handshake.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/unit/common/net/memory_link.h"

namespace muster::net {
namespace {

struct Ends {
  std::unique_ptr<Link> a;
  std::unique_ptr<Link> b;
  const Clock& clock;
};

struct Sockets {
  static constexpr Millis kWait{20};
  Ends Make() {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
    const auto make = [](int fd, std::string peer) {
      return std::make_unique<Socket>(Fd(fd), LinkKind::kUnix, std::move(peer), SpinMode::kOff,
                                      nullptr);
    };
    return {make(ends[0], "b"), make(ends[1], "a"), RealClock()};
  }
};

struct Memory {
  static constexpr Millis kWait{3'600'000};
  Ends Make() {
    auto [a, b] = MemoryLink::Pair(clock, "a", "b");
    a->SetCapacity(1 << 20);
    return {std::move(a), std::move(b), clock};
  }
  FakeScheduler clock;
};

iovec PartOf(std::string& text) { return {.iov_base = text.data(), .iov_len = text.size()}; }

// A channel whose peer is a script.
struct Slow {
  FakeScheduler clock;
  std::unique_ptr<MemoryLink> peer;
  std::unique_ptr<Channel> channel;

  Slow() {
    auto [a, b] = MemoryLink::Pair(clock, "self", "the peer");
    channel = std::make_unique<Channel>(std::move(a), FrameLimits{}, clock);
    peer = std::move(b);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("what is written to a link arrives in its order, then its end", "[net][unit]",
                   Sockets, Memory) {
  TestType maker;
  const Ends ends = maker.Make();
  std::string first = "first, ";
  std::string none;
  std::string second = "second";
  std::array<iovec, 3> parts = {PartOf(first), PartOf(none), PartOf(second)};

  REQUIRE(WriteAll(*ends.a, ends.clock, parts, ends.clock.Now() + TestType::kWait).ok());
  ends.a->EndWrites();
  std::string got;
  std::array<std::byte, 5> some{};
  for (std::size_t n = 1; n > 0;) {
    const auto read = ends.b->Read(some, ends.clock.Now() + TestType::kWait, nullptr);
    REQUIRE(read.ok());
    n = *read;
    got.append(reinterpret_cast<const char*>(some.data()), n);
  }

  CHECK(got == "first, second");
  CHECK(ends.a->bytes() == got.size());
  CHECK(ends.b->bytes() == got.size());
}

TEMPLATE_TEST_CASE("a link's read ends at its deadline and names the peer", "[net][unit]", Sockets,
                   Memory) {
  TestType maker;
  const Ends ends = maker.Make();
  const TimePoint deadline = ends.clock.Now() + TestType::kWait;
  std::array<std::byte, 5> some{};

  const auto read = ends.b->Read(some, deadline, nullptr);

  CHECK(read.status().code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(read.status()) == "a: no bytes came");
  CHECK(ends.clock.Now() >= deadline);
}

TEMPLATE_TEST_CASE("a write that nobody takes says how far it came", "[net][unit]", Sockets,
                   Memory) {
  TestType maker;
  const Ends ends = maker.Make();
  std::vector<char> much(8 << 20);
  iovec part{.iov_base = much.data(), .iov_len = much.size()};

  const Status status =
      WriteAll(*ends.a, ends.clock, std::span(&part, 1), ends.clock.Now() + TestType::kWait);

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(status) == fmt::format("b took {} of {} bytes in {}", ends.a->bytes(), much.size(),
                                       Message(status).substr(Message(status).rfind("in ") + 3)));
  CHECK(ends.a->bytes() > 0);
}

TEMPLATE_TEST_CASE("a link that was shut down waits for nothing any more", "[net][unit]", Sockets,
                   Memory) {
  TestType maker;
  const Ends ends = maker.Make();
  std::array<std::byte, 5> some{};
  std::string text = "late";
  iovec part = PartOf(text);

  ends.b->ShutDown();

  const auto read = ends.b->Read(some, TimePoint::max(), nullptr);
  REQUIRE(read.ok());
  CHECK(*read == 0);
  CHECK(WriteAll(*ends.a, ends.clock, std::span(&part, 1), TimePoint::max()).code() ==
        StatusCode::kUnavailable);
}

TEST_CASE("a peer is found by its name, and a name that nobody knows may be known later",
          "[net][unit]") {
  const auto listener = ListenTcp("localhost:0");
  REQUIRE(listener.ok());
  const std::string port = listener->address.substr(listener->address.rfind(':'));
  const TimePoint soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);

  CHECK(ConnectTcp("localhost" + port, soon).ok());
  CHECK(ConnectTcp("127.0.0.1" + port, soon).ok());
  CHECK(ConnectTcp("no-such-host.invalid" + port, soon).status().code() ==
        StatusCode::kUnavailable);
  for (const char* wrong : {"localhost", ":7000", "localhost:", "localhost:http", "[::1:7000"}) {
    INFO(wrong);
    CHECK(ConnectTcp(wrong, soon).status().code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("a peer that sends nothing is named with the time that it was given", "[net][unit]") {
  Slow slow;

  const auto frame = slow.channel->ReadFrame(slow.channel->After(Millis(10'000)));

  CHECK(frame.status().code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(frame.status()) == "the peer: no frame for 10 s");
}

TEST_CASE("a header that stays half has a limit of its own and is counted in bytes",
          "[net][unit]") {
  Slow slow;
  std::array<std::byte, kHeaderBytes> raw{};
  EncodeHeader({.kind = kFirstOfProtocols}, raw);
  slow.peer->WriteLater(std::span(raw).first(30), Millis(60'000));

  const auto frame = slow.channel->ReadFrame(TimePoint::max(), Millis(2'500));

  CHECK(frame.status().code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(frame.status()) == "the peer: 30 of 80 bytes of a frame's header came in 2.5 s");
}

TEST_CASE("a payload that stops is told by its frame, its bytes and its time", "[net][unit]") {
  Slow slow;
  std::array<std::byte, kHeaderBytes> raw{};
  EncodeHeader({.kind = 18, .request = 7, .payload_bytes = 4'000}, raw);
  const std::vector<std::byte> some(1'000);
  slow.peer->WriteLater(raw, Millis(0));
  slow.peer->WriteLater(some, Millis(1'000));

  REQUIRE(slow.channel->ReadFrame(slow.channel->After(Millis(1'000))).ok());
  std::vector<std::byte> into(3'000);
  REQUIRE(slow.channel->ReadPayload(std::span(into).first(600), TimePoint::max()).ok());
  const Status status = slow.channel->ReadPayload(into, slow.channel->After(Millis(30'000)));

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(status) ==
        "the peer: frame 7 of kind 18: 1000 of 4000 bytes of its payload came in 31 s");
}

TEST_CASE("a frame that its peer does not take is told by its number and its bytes",
          "[net][unit]") {
  FakeScheduler clock;
  auto [a, b] = MemoryLink::Pair(clock, "self", "the peer");
  a->SetCapacity(100);
  Channel channel(std::move(a), {}, clock);
  std::string payload(500, 'x');
  const iovec part = PartOf(payload);

  const Status status = channel.Send({.kind = 18, .request = 9}, {}, std::span(&part, 1),
                                     channel.After(Millis(10'000)));

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(status) == "frame 9 of kind 18: the peer took 100 of 580 bytes in 10 s");
}

TEST_CASE("a peer that greets byte by byte has one limit for all of it", "[net][unit]") {
  Slow slow;
  std::array<std::byte, kHeaderBytes> hello{};
  EncodeHeader({.kind = kHello, .meta_bytes = 200}, hello);
  // Each part comes well within what all together may take.
  for (int i = 0; i < 8; ++i) {
    slow.peer->WriteLater(std::span(hello).subspan(static_cast<std::size_t>(10 * i), 10),
                          Millis(900 * i));
  }
  const TimePoint begin = slow.clock.Now();

  const auto hello_read = WelcomeClient(*slow.channel, {"secret", "h"}, begin + Millis(5'000),
                                        [](const Hello&) { return Ok(); });

  CHECK(hello_read.status().code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(hello_read.status()).find("60 of 80 bytes of a frame's header") !=
        std::string::npos);
  CHECK(slow.clock.Now() == begin + Millis(5'000));
}

}  // namespace muster::net
