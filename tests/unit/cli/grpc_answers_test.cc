// What a command says of an address where something else than a coordinator answers.
#include <array>
#include <cstddef>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/cluster_finder.h"
#include "cli/exit_code.h"
#include "cli/job_api.h"
#include "tests/support/catch.h"

namespace muster::cli {
namespace {

// A server of HTTP/2 that has no such page: 404 is its answer to the first request.
class NoSuchPage {
 public:
  NoSuchPage() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    REQUIRE(::bind(listener_, address, size) == 0);
    REQUIRE(::listen(listener_, 4) == 0);
    REQUIRE(::getsockname(listener_, address, &size) == 0);
    address_ = fmt::format("127.0.0.1:{}", ntohs(at.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  // Its client is gone by then; accept() ends with the socket.
  ~NoSuchPage() {
    (void)::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    (void)::close(listener_);
  }
  NoSuchPage(const NoSuchPage&) = delete;
  NoSuchPage& operator=(const NoSuchPage&) = delete;
  const std::string& address() const { return address_; }

 private:
  static bool Read(int socket, std::size_t bytes, unsigned char* to) {
    return ::recv(socket, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }

  void Serve() const {
    using namespace std::string_literals;
    const int socket = ::accept(listener_, nullptr, nullptr);
    if (socket < 0) return;
    const std::string settings = "\0\0\0\x4\0\0\0\0\0"s;
    (void)::send(socket, settings.data(), settings.size(), MSG_NOSIGNAL);
    std::array<unsigned char, 16384> buffer{};
    bool there = Read(socket, 24, buffer.data());  // the preface
    while (there && Read(socket, 9, buffer.data())) {
      const std::size_t size = buffer[0] << 16U | buffer[1] << 8U | buffer[2];
      if (buffer[3] == 1) {
        // The headers of a request; ":status: 404" is number 13 of HPACK's table.
        std::string answer = "\0\0\x1\x1\x5"s;
        answer.append(reinterpret_cast<const char*>(&buffer[5]), 4);
        answer += '\x8d';
        (void)::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL);
      }
      there = size == 0 || (size <= buffer.size() && Read(socket, size, buffer.data()));
    }
    (void)::close(socket);
  }

  const int listener_;
  std::string address_;
  std::thread thread_;
};

TEST_CASE("an address where a server of web pages answers has no coordinator", "[cli][unit]") {
  const NoSuchPage server;
  Cluster cluster;
  cluster.address = server.address();
  cluster.token = "0123456789abcdef";
  const auto status = NewGrpcJobApi(cluster)->GetStatus().status();
  CAPTURE(Message(status));
  CHECK(CodeOf(status) == ExitCode::kUnreachable);
  CHECK(Message(status).find("what listens there speaks HTTP/2 but no gRPC") != std::string::npos);
}

TEST_CASE("a call that Ctrl-C ends says so", "[cli][unit]") {
  const NoSuchPage server;
  Cluster cluster;
  cluster.address = server.address();
  cluster.token = "0123456789abcdef";
  const auto api = NewGrpcJobApi(cluster);
  api->CancelCalls();
  const auto status = api->GetStatus().status();
  CHECK(CodeOf(status) == ExitCode::kInterrupted);
  CHECK(Message(status) ==
        "interrupted before the coordinator at " + server.address() + " had answered");
}

}  // namespace
}  // namespace muster::cli
