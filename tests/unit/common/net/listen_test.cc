#include "common/net/listen_at.h"
#include "tests/support/catch.h"

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

TEST_CASE("what is no address is refused", "[net][unit]") {
  for (const char* text : {"", "host", "host:", ":1", "127.0.0.1:port"}) {
    CAPTURE(text);
    CHECK(ListenAt(text).status().code() == StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace muster::net
