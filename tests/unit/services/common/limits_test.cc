// What a gRPC port does when descriptors run out, or too many come, or with too much.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/fd.h"
#include "services/common/grpc_channel.h"
#include "services/common/grpc_server.h"
#include "tests/support/catch.h"
#include "tests/support/no_descriptors.h"

namespace muster::services {
namespace {

using std::chrono::seconds;

// A connection that says nothing.
net::Fd ConnectTo(int port) {
  net::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return net::Fd();
  }
  return fd;
}

// Whether the peer closes within `limit`.
bool ClosedWithin(const net::Fd& fd, seconds limit) {
  const timeval timeout{.tv_sec = 0, .tv_usec = 50'000};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    char bytes[512];  // what the server says first
    const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
  }
  return false;
}

bool Answers(const GrpcServer& server, seconds limit) {
  const auto channel = MakeChannel(server.endpoint().ToString());
  return channel->WaitForConnected(std::chrono::system_clock::now() + limit);
}

TEST_CASE("a server without a free descriptor goes on when there is one again",
          "[services][unit]") {
  const auto server = GrpcServer::Start({.listen = {.host = "127.0.0.1", .port = 0}});
  REQUIRE(server.ok());
  REQUIRE(Answers(**server, seconds(10)));
  {
    // The connection is made by the kernel and waits to be accepted.
    net::Fd mine(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>((*server)->endpoint().port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const testing::NoMoreDescriptors none;
    REQUIRE(::connect(mine.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
            0);
    CHECK_FALSE(ClosedWithin(mine, seconds(1)));
  }

  CHECK(Answers(**server, seconds(10)));
}

TEST_CASE("silent peers are refused above the limit, dropped after a while, and block nobody",
          "[services][unit]") {
  const auto server =
      GrpcServer::Start({.listen = {.host = "127.0.0.1", .port = 0}, .most_connections = 20});
  REQUIRE(server.ok());
  std::vector<net::Fd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(ConnectTo((*server)->endpoint().port));

  const net::Fd refused = ConnectTo((*server)->endpoint().port);
  CHECK(ClosedWithin(refused, seconds(2)));
  CHECK(ClosedWithin(silent.front(), seconds(10)));
  CHECK(Answers(**server, seconds(10)));
}

TEST_CASE("large messages of callers without a token do not add up", "[services][unit]") {
  const auto server = GrpcServer::Start({.listen = {.host = "127.0.0.1", .port = 0}});
  REQUIRE(server.ok());
  const std::string text(15 << 20, '\xff');
  const grpc::Slice slice(text);
  std::atomic<int> broken_off{0};

  std::vector<std::thread> callers;
  for (int i = 0; i < 60; ++i) {
    callers.emplace_back([&] {
      grpc::GenericStub stub(MakeChannel((*server)->endpoint().ToString()));
      grpc::ByteBuffer request(&slice, 1);
      grpc::ByteBuffer reply;
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + seconds(30));
      grpc::CompletionQueue queue;
      const auto call =
          stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
      call->StartCall();
      grpc::Status status;
      call->Finish(&reply, &status, nullptr);
      void* tag = nullptr;
      bool ok = false;
      (void)queue.Next(&tag, &ok);
      if (!status.ok()) ++broken_off;  // without a bound each is read whole, and answered
    });
  }
  for (std::thread& caller : callers) caller.join();

  CHECK(broken_off > 0);
  CHECK(Answers(**server, seconds(10)));
}

}  // namespace
}  // namespace muster::services
