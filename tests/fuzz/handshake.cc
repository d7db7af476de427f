// Both sides of the handshake against a peer that says anything and hangs up. The first byte says
// which side is tried.
#include "common/net/handshake.h"

#include <array>

#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  // A pair of sockets holds this much without a reader.
  if (size == 0 || size > 60'000) return 0;
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0) return 0;
  const net::Fd peer(ends[1]);
  if (::write(ends[1], data + 1, size - 1) < 0) return 0;
  (void)::shutdown(ends[1], SHUT_WR);

  net::Channel channel(net::Fd(ends[0]), net::LinkKind::kTcp, "peer", net::SpinMode::kOff, nullptr);
  const net::Identity self{.token = "secret", .host_id = "host"};
  if ((data[0] & 1) != 0) {
    const auto hello =
        net::WelcomeClient(channel, self, std::chrono::steady_clock::now() + Millis(2'000),
                           [](const net::Hello&) { return Ok(); });
    fuzz::Require(!hello.ok(), "nobody is let in without the token");
  } else {
    const Status status = net::GreetServer(channel, self, "worker", {},
                                           std::chrono::steady_clock::now() + Millis(2'000));
    fuzz::Require(!status.ok(), "no server is believed without the token");
  }
  return 0;
}
