#include "common/net/handshake.h"

#include <array>
#include <memory>
#include <thread>

#include <sys/socket.h>

#include "tests/support/catch.h"
#include "tests/unit/net/deadline.h"

namespace muster::net {
namespace {

struct Meeting {
  Status client;
  Result<Hello> server = Hello{};
};

// Both sides at once, over a pair of sockets that call themselves TCP.
Meeting Meet(const Identity& client, const Identity& server, const Status& admit,
             const std::string& role = "worker") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
  Channel a(Fd(ends[0]), LinkKind::kTcp, "ps:0", SpinMode::kOff, nullptr);
  Channel b(Fd(ends[1]), LinkKind::kTcp, "10.0.0.1:5", SpinMode::kOff, nullptr);
  Meeting meeting;
  std::thread other([&] {
    meeting.server = WelcomeClient(b, server, Millis(5'000), [&](const Hello&) { return admit; });
  });
  meeting.client = GreetServer(a, client, role, 7, 3, Soon());
  other.join();
  return meeting;
}

}  // namespace

TEST_CASE("peers with the same token learn of each other", "[net][unit]") {
  const Meeting meeting = Meet({"secret", "host a"}, {"secret", "host b"}, Ok());

  REQUIRE(meeting.client.ok());
  REQUIRE(meeting.server.ok());
  CHECK(meeting.server->role == "worker");
  CHECK(meeting.server->host_id == "host a");
  CHECK(meeting.server->job == 7);
  CHECK(meeting.server->view == 3);
}

TEST_CASE("peers with different tokens part as unauthenticated", "[net][unit]") {
  const Meeting meeting = Meet({"secret", "h"}, {"other secret", "h"}, Ok());

  CHECK(meeting.client.code() == StatusCode::kUnauthenticated);
  CHECK(Message(meeting.client).find("10.0.0.1:5 does not know this cluster's token") !=
        std::string::npos);
  CHECK(meeting.server.status().code() == StatusCode::kUnauthenticated);
}

TEST_CASE("who may not come in hears why", "[net][unit]") {
  const Meeting meeting = Meet({"secret", "h"}, {"secret", "h"}, Aborted("view 3 is over"));

  CHECK(meeting.client.code() == StatusCode::kAborted);
  CHECK(Message(meeting.client) == "ps:0: view 3 is over");
}

TEST_CASE("a server that cannot prove the token is not believed", "[net][unit]") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
  Channel a(Fd(ends[0]), LinkKind::kTcp, "ps:0", SpinMode::kOff, nullptr);
  Channel b(Fd(ends[1]), LinkKind::kTcp, "client", SpinMode::kOff, nullptr);
  const std::array<std::byte, 32> nonce{};
  const std::array<std::byte, 33> made_up{};
  REQUIRE(b.Send({.kind = FrameKind::kNonce}, nonce, {}, Soon()).ok());
  REQUIRE(b.Send({.kind = FrameKind::kWelcome}, made_up, {}, Soon()).ok());

  const Status status = GreetServer(a, {"secret", "h"}, "worker", 1, 1, Soon());

  CHECK(status.code() == StatusCode::kUnauthenticated);
}

}  // namespace muster::net
