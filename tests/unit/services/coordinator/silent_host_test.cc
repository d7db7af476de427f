// A coordinator whose host has vanished, as far as a connection can tell.
#include <array>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/cluster_finder.h"
#include "cli/job_api.h"
#include "common/net/fd.h"
#include "tests/support/catch.h"

namespace muster::coordinator {
namespace {

// Speaks as much HTTP/2 as makes a connection, then takes everything and answers nothing.
class SilentHost {
 public:
  SilentHost() {
    listener_.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    socklen_t size = sizeof at;
    REQUIRE(::bind(listener_.get(), address, size) == 0);
    REQUIRE(::listen(listener_.get(), 1) == 0);
    REQUIRE(::getsockname(listener_.get(), address, &size) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~SilentHost() {
    if (thread_.joinable()) thread_.join();
  }
  const std::string& address() const { return address_; }
  // Whether the other end has left by itself; waits for that.
  bool WasLeft() {
    thread_.join();
    return left_;
  }

 private:
  // So long a caller without patience may stay.
  static constexpr int kLimitMs = 20'000;

  void Serve() {
    pollfd comes{listener_.get(), POLLIN, 0};
    if (::poll(&comes, 1, kLimitMs) <= 0) return;
    const net::Fd peer(::accept(listener_.get(), nullptr, nullptr));
    listener_.Reset();  // nobody comes a second time
    constexpr std::array<char, 9> kSettings{0, 0, 0, 4, 0, 0, 0, 0, 0};
    (void)!::write(peer.get(), kSettings.data(), kSettings.size());
    std::array<char, 4096> bytes{};
    pollfd says{peer.get(), POLLIN, 0};
    while (::poll(&says, 1, kLimitMs) > 0) {
      if (::read(peer.get(), bytes.data(), bytes.size()) > 0) continue;
      left_ = true;
      return;
    }
  }

  net::Fd listener_;
  std::string address_;
  bool left_ = false;
  std::thread thread_;
};

TEST_CASE("A log that is followed ends when the coordinator's host answers nothing any more",
          "[services][unit]") {
  SilentHost host;
  const cli::Cluster cluster{
      .address = host.address(), .token = "0123456789abcdef0123", .tls = nullptr};
  const auto api = cli::NewGrpcJobApi(cluster, false, nullptr, "0.4.0", rpc::kStandsStill,
                                      std::chrono::milliseconds(200));
  v1::ReadLogsRequest request;
  request.set_job("job-1");
  request.set_follow(true);

  const Status ended = api->ReadLogs(request, [](const v1::LogRecord&) {});

  CHECK(host.WasLeft());
  CHECK(ended.code() == StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::coordinator
