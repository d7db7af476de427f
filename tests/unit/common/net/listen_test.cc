#include <atomic>
#include <csignal>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/host_port.h"
#include "common/net/listen_at.h"
#include "tests/support/catch.h"
#include "tests/support/own_host.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/net/deadline.h"

namespace muster::net {
namespace {

TEST_CASE("who listens where a name says is found there", "[net][unit]") {
  const Result<Listener> listener = ListenAt("localhost:0");
  REQUIRE(listener.ok());
  const std::string port = listener->address.substr(listener->address.rfind(':'));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  CHECK(ConnectTcp("localhost" + port, deadline).ok());
}

TEST_CASE("an address of another host is listened to on all interfaces", "[net][unit]") {
  const Result<Listener> listener = ListenAt("192.0.2.1:0");
  REQUIRE(listener.ok());
  CHECK(listener->address.rfind("0.0.0.0:", 0) == 0);
}

TEST_CASE("a name that stands in for this host here alone is listened to where others come",
          "[net][unit]") {
  // As Debian's installer writes it, and as people do.
  const auto where = testing::OnHostWith("127.0.1.1 node-3\n127.0.0.1 here\n127.0.0.2 w0\n", [] {
    std::string all;
    for (const char* text : {"node-3:0", "127.0.1.1:0", "here:0", "w0:0"}) {
      const Result<Listener> listener = ListenAt(text);
      all += listener.ok() ? HostIn(listener->address) + " " : ToString(listener.status());
    }
    return all;
  });
  if (where) CHECK(*where == "0.0.0.0 127.0.1.1 127.0.0.1 127.0.0.2 ");
}

TEST_CASE("a socket is refused when nobody listens and not when its door is full", "[net][unit]") {
  const muster::testing::TempFolder folder;
  const std::string path = folder / "door";
  Fd door(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(door.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(door.get(), 0) == 0);

  std::vector<Fd> waiting;
  Status full;
  for (int i = 0; i < 8 && full.ok(); ++i) {
    auto one = ConnectUnix(path, Soon());
    full = one.status();
    if (one.ok()) waiting.push_back(*std::move(one));
  }
  CHECK_FALSE(full.ok());
  CHECK_FALSE(IsRefused(full));

  door.Reset();
  CHECK(IsRefused(ConnectUnix(path, Soon()).status()));
}

TEST_CASE("what is no address is refused", "[net][unit]") {
  for (const char* text : {"", "host", "host:", ":1", "127.0.0.1:port"}) {
    CAPTURE(text);
    CHECK(ListenAt(text).status().code() == StatusCode::kInvalidArgument);
  }
}

// A port of this host whose queue has no room, so that the kernel answers no further connection.
class FullPort {
 public:
  explicit FullPort(const std::string& host = "127.0.0.1")
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    REQUIRE(::inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(fd_.get(), any, size) == 0);
    REQUIRE(::listen(fd_.get(), 0) == 0);
    REQUIRE(::getsockname(fd_.get(), any, &size) == 0);
    address_ = JoinHostPort(host, ntohs(address.sin_port));
    first_ = ConnectTcp(address_, Soon()).value();
  }
  const std::string& address() const { return address_; }

 private:
  Fd fd_;
  std::string address_;
  Fd first_;
};

TEST_CASE("signals do not cut the wait for a connection short, and its error says how long it was",
          "[net][unit]") {
  const FullPort port;
  struct sigaction nothing{};
  nothing.sa_handler = [](int) {};
  struct sigaction before{};
  REQUIRE(::sigaction(SIGUSR1, &nothing, &before) == 0);
  std::atomic<bool> done{false};
  std::jthread signals([&done, waits = ::pthread_self()] {
    while (!done) {
      (void)::pthread_kill(waits, SIGUSR1);
      std::this_thread::yield();
    }
  });

  const TimePoint deadline = std::chrono::steady_clock::now() + Millis(50);
  const Status late = ConnectTcp(port.address(), deadline).status();
  const TimePoint ended = std::chrono::steady_clock::now();
  done = true;
  signals.join();
  (void)::sigaction(SIGUSR1, &before, nullptr);

  CHECK(late.code() == StatusCode::kDeadlineExceeded);
  CHECK(ended >= deadline);
  CHECK_THAT(Message(late), Catch::Matchers::Matches(".*: no answer to a connection in 0.* s"));
}

TEST_CASE("an address of a name that does not answer leaves time for the next one", "[net][unit]") {
  const auto said = testing::OnHostWith("127.0.0.2 peer\n127.0.0.3 peer\n", [] {
    const FullPort silent("127.0.0.2");
    const std::string port = silent.address().substr(silent.address().rfind(':'));
    const Result<Listener> listener = ListenTcp("127.0.0.3" + port);
    if (!listener.ok()) return ToString(listener.status());
    const TimePoint deadline = std::chrono::steady_clock::now() + Millis(1'000);
    return ToString(ConnectTcp("peer" + port, deadline).status());
  });
  if (said) CHECK(*said == ToString(Ok()));
}

TEST_CASE("who connects to a port at which nobody listens is not joined to itself", "[net][unit]") {
  const auto said = testing::OnHostWith("127.0.0.1 localhost\n", [] {
    // The ports that the kernel gives to who connects.
    std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
    if (!(range << "40000 40001" << std::flush)) return std::string();
    const std::string address = "127.0.0.1:40000";
    const Status connected = ConnectTcp(address, Soon()).status();
    const Status listens = ListenTcp(address).status();
    return ToString(connected) + ", " + ToString(listens);
  });
  if (!said) return;
  if (said->empty()) {
    WARN("left out: this process may not choose the kernel's ports");
    return;
  }
  const Status refused = Unavailable("127.0.0.1:40000: connect: Connection refused");
  CHECK(*said == ToString(refused) + ", " + ToString(Ok()));
}

TEST_CASE("a listener that other code has closed is an error, not waited for", "[net][unit]") {
  Result<Listener> listener = ListenTcp("127.0.0.1:0");
  REQUIRE(listener.ok());
  // A number that nobody else is given meanwhile.
  const int number = ::fcntl(listener->fd.get(), F_DUPFD_CLOEXEC, 900);
  REQUIRE(number >= 900);
  listener->fd.Reset(number);
  REQUIRE(::close(number) == 0);

  const Status status = Accept(std::span(&*listener, 1), -1, Millis(60'000)).status();
  (void)listener->fd.Release();

  CHECK(status.code() == StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::net
