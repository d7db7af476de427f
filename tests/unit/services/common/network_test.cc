#include "services/common/network.h"

#include <chrono>

#include "common/net/socket.h"
#include "tests/support/catch.h"
#include "tests/support/own_host.h"

namespace muster::services {
namespace {

TEST_CASE("localhost is listened to where IPv6 is switched off, though it is ::1 too",
          "[services][unit]") {
  // Containers have both lines.
  const auto said = testing::OnHostWith("127.0.0.1 localhost\n::1 localhost\n", [] {
    Endpoint endpoint{.host = "localhost", .port = 0};
    const auto listeners = Listen(endpoint);
    if (!listeners.ok()) return ToString(listeners.status());
    const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    return ToString(
        net::ConnectTcp(Endpoint{.host = "127.0.0.1", .port = endpoint.port}.ToString(), soon)
            .status());
  });
  if (said) CHECK(*said == ToString(Ok()));
}

TEST_CASE("an address that this host does not have is told", "[services][unit]") {
  const auto said = testing::OnHostWith("::1 six\n", [] {
    std::string all;
    for (const char* host : {"six", "192.0.2.1"}) {
      Endpoint endpoint{.host = host, .port = 0};
      all += Message(Listen(endpoint).status()) + "; ";
    }
    return all;
  });
  if (!said) return;
  CHECK(*said ==
        "listen on six:0: Cannot assign requested address; "
        "listen on 192.0.2.1:0: Cannot assign requested address; ");
}

}  // namespace
}  // namespace muster::services
