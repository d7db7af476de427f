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
#include "tests/support/certificates.h"

namespace muster::net {
namespace {

using namespace std::chrono_literals;
using testing::Certificates;
using testing::Says;

const tls::Holder kPs0{.role = tls::Role::kNode, .names = {"ps:0"}};
const tls::Holder kWorker{.role = tls::Role::kNode, .names = {"worker:0"}};
const tls::Holder kBob{.role = tls::Role::kViewer, .names = {"bob"}};
constexpr FrameKind kPayload = kFirstOfProtocols;

TimePoint Later() { return std::chrono::steady_clock::now() + 30s; }

std::shared_ptr<tls::Context> ContextOf(const tls::Files& files) {
  auto context = tls::Context::FromFiles(files);
  REQUIRE(context.status() == Ok());
  return *std::move(context);
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

TEST_CASE("nodes greet each other behind TLS, and 40 MB come over whole", "[net][tls][unit]") {
  Certificates folder;
  const Identity worker{.token = "secret",
                        .host_id = "a",
                        .tls = ContextOf(folder.Issue("w", kWorker)),
                        .server_task = "ps:0"};
  const Identity ps{.token = "secret", .host_id = "b", .tls = ContextOf(folder.Issue("p", kPs0))};
  TlsMeeting met = MeetByTls(worker, ps);
  REQUIRE(met.client == Ok());
  REQUIRE(met.server.status() == Ok());
  CHECK(met.client_stream->encrypted());
  CHECK(met.server_stream->session().peer().holder.ToString() == "node worker:0");

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
  Certificates folder;
  TlsMeeting met = MeetByTls({.token = "secret", .tls = ContextOf(folder.Issue("w", kWorker))},
                             {.token = "secret", .tls = ContextOf(folder.Issue("p", kPs0))});
  REQUIRE(met.client == Ok());
  DuplexLink left(met.client_stream, LinkKind::kTcp, "right", {});
  DuplexLink right(met.server_stream, LinkKind::kTcp, "left", {});
  const std::vector<std::byte> payload(8U << 20, std::byte{42});
  constexpr int kFrames = 4;

  const auto run = [&](DuplexLink& link) {
    const iovec part{const_cast<std::byte*>(payload.data()), payload.size()};
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

TEST_CASE(
    "a program proves itself by its job's key alone, to servers with and without certificates",
    "[net][tls][unit]") {
  Certificates folder;
  const auto keys = tls::Context::ForKeys();
  const Identity program{.token = "job key", .tls = keys};

  CHECK(MeetByTls(program, {.token = "job key", .tls = keys}).client == Ok());
  CHECK(
      MeetByTls(program, {.token = "job key", .tls = ContextOf(folder.Issue("p", kPs0))}).client ==
      Ok());
  const TlsMeeting wrong = MeetByTls(program, {.token = "another job's key", .tls = keys});
  CHECK(wrong.client.code() == StatusCode::kUnauthenticated);
  CHECK(wrong.server.status().code() == StatusCode::kUnauthenticated);
}

TEST_CASE(
    "a certificate that is revoked ends the connection that stands by it, and lets in no more",
    "[net][tls][unit]") {
  Certificates folder;
  const tls::Files worker = folder.Issue("w", kWorker);
  tls::Files ps = folder.Issue("p", kPs0);
  const std::string listed = folder.LineOf("p") + folder.LineOf("w");
  folder.Write("allowed", listed);
  ps.allowed = folder.path("allowed");
  const Identity client{.token = "secret", .tls = ContextOf(worker)};
  const Identity server{.token = "secret", .tls = ContextOf(ps)};
  TlsMeeting met = MeetByTls(client, server);
  REQUIRE(met.client == Ok());

  folder.Write("allowed", folder.LineOf("p"));

  // It waits for a frame that nobody sends.
  const Status ended = met.server_channel->ReadFrame(Later()).status();
  CHECK(ended.code() == StatusCode::kUnauthenticated);
  CHECK(Says(ended, "the certificate of node worker:0 has been revoked"));
  const auto heard = met.client_channel->ReadFrame(Later());
  CHECK((!heard.ok() || !heard->has_value()));
  TlsMeeting again = MeetByTls(client, server);
  CHECK(Says(again.server.status(), "the certificate of node worker:0"));
  CHECK(Says(again.client, "it refused this process's certificate: it has been revoked"));
  folder.Write("allowed", listed);
  CHECK(MeetByTls(client, server).client == Ok());
}

TEST_CASE("a node that connects again to the same task resumes, until it is revoked",
          "[net][tls][unit]") {
  Certificates folder;
  tls::Files ps = folder.Issue("p", kPs0);
  const tls::Files worker = folder.Issue("w", kWorker);
  folder.Write("allowed", folder.LineOf("p") + folder.LineOf("w"));
  ps.allowed = folder.path("allowed");
  const Identity client{.token = "secret", .tls = ContextOf(worker), .server_task = "ps:0"};
  const Identity server{.token = "secret", .tls = ContextOf(ps)};
  const TlsMeeting first = MeetByTls(client, server);
  REQUIRE(first.client == Ok());
  CHECK_FALSE(first.client_stream->session().resumed());

  TlsMeeting again = MeetByTls(client, server);
  REQUIRE(again.client == Ok());
  CHECK(again.client_stream->session().resumed());
  CHECK(again.server_stream->session().resumed());
  CHECK(again.server_stream->session().peer().holder.ToString() == "node worker:0");
  folder.Write("allowed", folder.LineOf("p"));

  // Also the connection that stands by a ticket ends.
  const Status ended = again.server_channel->ReadFrame(Later()).status();
  CHECK(Says(ended, "the certificate of node worker:0 has been revoked"));
  CHECK(Says(MeetByTls(client, server).client,
             "it refused this process's certificate: it has been revoked"));
}

TEST_CASE("who may not come in over TLS hears why", "[net][tls][unit]") {
  Certificates folder;
  const auto ps = ContextOf(folder.Issue("p", kPs0));

  SECTION("a viewer") {
    const TlsMeeting met = MeetByTls({.token = "secret", .tls = ContextOf(folder.Issue("b", kBob))},
                                     {.token = "secret", .tls = ps});
    CHECK(met.client.code() == StatusCode::kPermissionDenied);
    CHECK(Says(met.client, "has the certificate of viewer bob: data connections are for nodes"));
  }
  SECTION("a node without the token") {
    const TlsMeeting met =
        MeetByTls({.token = "guess", .tls = ContextOf(folder.Issue("w", kWorker))},
                  {.token = "secret", .tls = ps});
    CHECK(Says(met.client, "does not know the token, or the job's key"));
  }
  SECTION("a client in plain text") {
    const TlsMeeting met = MeetByTls({.token = "secret"}, {.token = "secret", .tls = ps}, 300ms);
    CHECK(Says(met.server.status(), "speaks plain text and waits for the same"));
    CHECK_FALSE(met.client.ok());
  }
  SECTION("a server in plain text") {
    const TlsMeeting met = MeetByTls(
        {.token = "secret", .tls = ContextOf(folder.Issue("w", kWorker))}, {.token = "secret"});
    CHECK(Says(met.client, "it speaks plain text where TLS is needed"));
  }
}

}  // namespace muster::net
