#include "common/net/handshake.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/net/proof.h"
#include "common/net/socket.h"
#include "tests/support/catch.h"
#include "tests/support/other_user.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/net/deadline.h"

namespace muster::net {
namespace {

constexpr Subject kSubject = {std::byte{7}, std::byte{0}, std::byte{3}};

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
    meeting.server = WelcomeClient(b, server, Soon(), [&](const Hello&) { return admit; });
  });
  meeting.client = GreetServer(a, client, role, kSubject, Soon());
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
  CHECK(meeting.server->subject == kSubject);
}

TEST_CASE("peers with different tokens part as unauthenticated", "[net][unit]") {
  const Meeting meeting = Meet({"secret", "h"}, {"other secret", "h"}, Ok());

  CHECK(meeting.client.code() == StatusCode::kUnauthenticated);
  CHECK(Message(meeting.client).find("10.0.0.1:5 does not know the token, or the job's key") !=
        std::string::npos);
  CHECK(meeting.server.status().code() == StatusCode::kUnauthenticated);
}

TEST_CASE("the key of a job opens links of that job and epoch alone", "[net][unit]") {
  const std::string key = JobKey("token", "job-1", Epoch(7));

  CHECK(key.size() == 32);
  CHECK(key == JobKey("token", "job-1", Epoch(7)));
  CHECK(key != JobKey("other token", "job-1", Epoch(7)));
  CHECK(key != JobKey("token", "job-2", Epoch(7)));
  CHECK(key != JobKey("token", "job-1", Epoch(8)));
  CHECK(Meet({key, "h"}, {key, "h"}, Ok()).client.ok());
  CHECK(Meet({key, "h"}, {JobKey("token", "job-1", Epoch(8)), "h"}, Ok()).client.code() ==
        StatusCode::kUnauthenticated);
  CHECK(Meet({key, "h"}, {"token", "h"}, Ok()).client.code() == StatusCode::kUnauthenticated);
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
  REQUIRE(b.Send({.kind = kNonce}, nonce, {}, Soon()).ok());
  REQUIRE(b.Send({.kind = kWelcome}, made_up, {}, Soon()).ok());

  const Status status = GreetServer(a, {"secret", "h"}, "worker", kSubject, Soon());

  CHECK(status.code() == StatusCode::kUnauthenticated);
}

TEST_CASE("descriptors that nobody asked for are closed, however many come along", "[net][unit]") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
  const Fd sender(ends[0]);
  Socket socket(Fd(ends[1]), LinkKind::kUnix, "client", SpinMode::kOff, nullptr);
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const Fd read_end(pipe[0]);
  Fd write_end(pipe[1]);
  const std::array<int, 2> both = {write_end.get(), write_end.get()};
  char byte = 'x';
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(both))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(both));
  std::memcpy(CMSG_DATA(header), both.data(), sizeof(both));
  REQUIRE(::sendmsg(sender.get(), &message, 0) == 1);
  write_end.Reset();

  std::array<std::byte, 16> bytes{};
  {
    Fd received;
    REQUIRE(socket.Read(bytes, Soon(), &received).ok());
    CHECK(received.valid());
  }

  // The pipe ends once nobody holds its other end.
  pollfd entry{.fd = read_end.get(), .events = POLLIN, .revents = 0};
  CHECK(::poll(&entry, 1, 0) == 1);
  CHECK((entry.revents & POLLHUP) != 0);
}

namespace {

using testing::OtherUser;

// A folder and a socket's path that another user may use.
struct OpenFolder {
  OpenFolder() { REQUIRE(::chmod(folder.path().c_str(), 0777) == 0); }
  const testing::TempFolder folder;
  const std::string path = folder / "socket";
};

Channel UnixChannel(Fd fd, const std::string& peer) {
  return {std::move(fd), LinkKind::kUnix, peer, SpinMode::kOff, nullptr};
}

Listener ListenForAll(const OpenFolder& open) {
  Result<Listener> listener = ListenUnix(open.path);
  REQUIRE(listener.ok());
  REQUIRE(::chmod(open.path.c_str(), 0777) == 0);
  return *std::move(listener);
}

Channel AcceptOne(const Listener& listener) {
  auto accepted = Accept({&listener, 1}, -1, Millis(20'000));
  REQUIRE(accepted.ok());
  REQUIRE(accepted->fd.valid());
  return UnixChannel(std::move(accepted->fd), "a client");
}

// What a client says that has connected there.
std::string SaidBy(const OpenFolder& open, const std::function<std::string(Channel&)>& client) {
  auto fd = ConnectUnix(open.path, Soon());
  if (!fd.ok()) return ToString(fd.status());
  Channel channel = UnixChannel(*std::move(fd), "the server");
  return client(channel);
}

}  // namespace

TEST_CASE("over a Unix socket another user's process is refused, though it knows the token",
          "[net][unit]") {
  if (!testing::MayBeOthers()) return;
  const OpenFolder open;
  const Identity self{"secret", "host"};

  SECTION("as a client: both hear why") {
    const Listener listener = ListenForAll(open);
    const OtherUser other([&] {
      return SaidBy(open, [&](Channel& channel) {
        return ToString(GreetServer(channel, self, "worker", kSubject, Soon()));
      });
    });
    Channel channel = AcceptOne(listener);

    bool asked = false;
    const auto hello = WelcomeClient(channel, self, Soon(), [&](const Hello&) {
      asked = true;
      return Ok();
    });

    CHECK(hello.status().code() == StatusCode::kUnavailable);
    CHECK(Message(hello.status()).find("is user 12345's, and this one user 0's") !=
          std::string::npos);
    CHECK_FALSE(asked);
    // It has looked itself, too.
    CHECK(other.Words().find("is user 0's, and this one user 12345's") != std::string::npos);
  }
  SECTION("as a client that does not look itself") {
    const Listener listener = ListenForAll(open);
    const OtherUser other([&] {
      return SaidBy(open, [](Channel& channel) {
        const auto first = channel.ReadFrame(Soon());
        if (!first.ok() || !*first) return std::string("nothing came");
        return ToString(StatusOf(**first, channel.meta()));
      });
    });
    Channel channel = AcceptOne(listener);

    CHECK_FALSE(WelcomeClient(channel, self, Soon(), [](const Hello&) { return Ok(); }).ok());

    CHECK(other.Words().find("shared memory is for processes of one user") != std::string::npos);
  }
  SECTION("as a server: it is told nothing") {
    std::array<int, 2> ready{};
    REQUIRE(::pipe2(ready.data(), O_CLOEXEC) == 0);
    const Fd ready_out(ready[0]);
    const Fd ready_in(ready[1]);
    const OtherUser other([&] {
      const Result<Listener> listener = ListenUnix(open.path);
      if (!listener.ok()) return ToString(listener.status());
      (void)!::write(ready_in.get(), "!", 1);
      auto accepted = Accept({&*listener, 1}, -1, Millis(20'000));
      if (!accepted.ok() || !accepted->fd.valid()) return std::string("nobody came");
      Channel channel = UnixChannel(std::move(accepted->fd), "a client");
      if (!channel.Send({.kind = kNonce}, RandomNonce(), {}, Soon()).ok()) return std::string();
      const auto hello = channel.ReadFrame(Soon());
      return std::string(hello.ok() && *hello ? "it has said hello" : "it has said nothing");
    });
    char byte = 0;
    REQUIRE(::read(ready_out.get(), &byte, 1) == 1);
    auto fd = ConnectUnix(open.path, Soon());
    REQUIRE(fd.ok());
    Status status;
    {
      Channel channel = UnixChannel(*std::move(fd), "the server");
      status = GreetServer(channel, self, "worker", kSubject, Soon());
    }

    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK(Message(status).find("is user 12345's, and this one user 0's") != std::string::npos);
    CHECK(other.Words() != "it has said hello");
  }
}

}  // namespace muster::net
