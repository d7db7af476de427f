// The handshake and what follows it behind TLS, over sockets of loopback.
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include <sys/socket.h>

#include "common/net/duplex_link.h"
#include "common/net/handshake.h"
#include "common/net/socket.h"
#include "tests/support/catch.h"

namespace muster::net {
namespace {

using namespace std::chrono_literals;

constexpr FrameKind kPayload = kFirstOfProtocols;

TimePoint Later() { return std::chrono::steady_clock::now() + 30s; }

Identity Of(const std::string& key) { return {.token = key, .tls = tls::KeyContext::Make()}; }

bool Says(const Status& status, std::string_view words) {
  INFO(ToString(status));
  return Message(status).find(words) != std::string::npos;
}

struct TlsMeeting {
  std::shared_ptr<Stream> client_stream;
  std::shared_ptr<Stream> server_stream;
  std::unique_ptr<Channel> client_channel;
  std::unique_ptr<Channel> server_channel;
  Status client = Ok();
  Result<Hello> server = Hello{};
};

// `patience`: the server's.
TlsMeeting MeetByTls(const Identity& client, const Identity& server, Millis patience = 30s) {
  const auto listener = ListenTcp("127.0.0.1:0");
  REQUIRE(listener.ok());
  auto ours = ConnectTcp(listener->address, Later());
  REQUIRE(ours.ok());
  auto theirs = Accept(std::span(&*listener, 1), -1, 5s);
  REQUIRE(theirs.ok());
  TlsMeeting meeting;
  meeting.client_stream = std::make_shared<Stream>(*std::move(ours));
  meeting.server_stream = std::make_shared<Stream>(std::move(theirs->fd));
  meeting.client_channel =
      std::make_unique<Channel>(meeting.client_stream, LinkKind::kTcp, "ps:0", FrameLimits{});
  meeting.server_channel =
      std::make_unique<Channel>(meeting.server_stream, LinkKind::kTcp, "10.0.0.1:5", FrameLimits{});
  std::thread other([&] {
    meeting.server =
        WelcomeClient(*meeting.server_channel, server, meeting.server_channel->After(patience),
                      [](const Hello&) { return Ok(); });
    if (!meeting.server.ok()) meeting.server_stream->ShutDown();
  });
  meeting.client = GreetServer(*meeting.client_channel, client, "worker", Subject{}, Later());
  if (!meeting.client.ok()) meeting.client_stream->ShutDown();
  other.join();
  return meeting;
}

}  // namespace

TEST_CASE("two that know one key greet each other behind TLS, and 40 MB come over whole",
          "[net][tls][unit]") {
  TlsMeeting met = MeetByTls(Of("job key"), Of("job key"));
  REQUIRE(met.client == Ok());
  REQUIRE(met.server.status() == Ok());
  CHECK(met.client_stream->encrypted());
  CHECK(met.server_stream->encrypted());

  std::vector<std::uint32_t> sent(10'000'000);
  std::iota(sent.begin(), sent.end(), 7U);
  std::vector<std::uint32_t> got(sent.size());
  Status received = Unknown("nothing came");
  std::thread reader([&] {
    const auto frame = met.server_channel->ReadFrame(Later());
    received = frame.status();
    if (received.ok()) {
      received = met.server_channel->ReadPayload(std::as_writable_bytes(std::span(got)), Later());
    }
  });
  const iovec part{sent.data(), sent.size() * sizeof(sent[0])};
  const Status wrote = met.client_channel->Send({.kind = kPayload}, {}, {&part, 1}, Later());
  reader.join();

  CHECK(wrote == Ok());
  CHECK(received == Ok());
  CHECK(got == sent);
}

TEST_CASE("two that send and read at once behind TLS do not wait for each other",
          "[net][tls][unit]") {
  TlsMeeting met = MeetByTls(Of("job key"), Of("job key"));
  REQUIRE(met.client == Ok());
  DuplexLink left(met.client_stream, LinkKind::kTcp, "right", {});
  DuplexLink right(met.server_stream, LinkKind::kTcp, "left", {});
  const std::vector<std::byte> payload(8U << 20, std::byte{42});
  constexpr int kFrames = 4;

  const auto run = [&](DuplexLink& link) {
    const KeptBytes part = payload;
    int got = 0;
    bool whole = true;
    for (int i = 0; i < kFrames; ++i) {
      if (!link.Queue({.kind = kPayload}, {}, {&part, 1}).ok()) return -1;
    }
    const auto take = [&](const FrameHeader&, std::span<const std::byte>,
                          std::span<const std::byte> came) {
      whole = whole && std::ranges::equal(came, payload);
      ++got;
      return Ok();
    };
    const TimePoint until = Later();
    while ((got < kFrames || link.unsent() > 0) && std::chrono::steady_clock::now() < until) {
      if (!link.Flush().ok() || !link.Receive(take).ok()) return -2;
      if (got == kFrames && link.unsent() == 0) break;
      DuplexLink* const one = &link;
      WaitForLinks({&one, 1}, -1, until, nullptr);
    }
    return whole ? got : -3;
  };
  int right_got = 0;
  std::thread other([&] { right_got = run(right); });
  const int left_got = run(left);
  other.join();

  CHECK(left_got == kFrames);
  CHECK(right_got == kFrames);
}

TEST_CASE("who may not come in over TLS hears why", "[net][tls][unit]") {
  SECTION("with another job's key") {
    const TlsMeeting met = MeetByTls(Of("another job's key"), Of("job key"));
    CHECK(met.server.status().code() == StatusCode::kUnauthenticated);
    CHECK(Says(met.server.status(), "it does not have the key that it names"));
    CHECK(met.client.code() == StatusCode::kUnauthenticated);
    CHECK(Says(met.client, "it refused this process's key: it is of another cluster or job"));
  }
  SECTION("a client in plain text") {
    const TlsMeeting met = MeetByTls({.token = "job key"}, Of("job key"), 300ms);
    CHECK(Says(met.server.status(), "speaks plain text and waits for the same"));
    CHECK_FALSE(met.client.ok());
  }
  SECTION("a server in plain text") {
    const TlsMeeting met = MeetByTls(Of("job key"), {.token = "job key"});
    CHECK(Says(met.client, "it speaks plain text where TLS is needed"));
  }
}

}  // namespace muster::net
