#include "common/base/host_port.h"

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("an address that was put together is taken apart again, IPv6 too", "[base][unit]") {
  const std::string host =
      GENERATE(as<std::string>{}, "10.0.0.7", "worker-0.example", "::1", "fd00::7%eth0");

  const std::string address = JoinHostPort(host, 4711);

  const auto parts = SplitHostPort(address);
  REQUIRE(parts);
  CHECK(parts->host == host);
  CHECK(parts->port == "4711");
}

TEST_CASE("an IPv6 host has brackets before a port, once", "[base][unit]") {
  CHECK(JoinHostPort("fd00::7", 80) == "[fd00::7]:80");
  CHECK(JoinHostPort("[fd00::7]", "80") == "[fd00::7]:80");
  CHECK(JoinHostPort("10.0.0.7", 80) == "10.0.0.7:80");
  CHECK(Bracketed("fd00::7") == "[fd00::7]");
  CHECK(Bracketed("worker-0") == "worker-0");
}

TEST_CASE("what has no host before a last colon, or colons in it without brackets, is no address",
          "[base][unit]") {
  const std::string text = GENERATE(as<std::string>{}, "", "host", ":", ":80", "[]:80", "::1",
                                    "::1:80", "a:b:80", "[::1]", "[::1:80", "::1]:80", "[");
  CAPTURE(text);

  CHECK_FALSE(SplitHostPort(text));
}

TEST_CASE("the port of an address may be anything, and its reader says what is allowed",
          "[base][unit]") {
  const auto none = SplitHostPort("host:");
  REQUIRE(none);
  CHECK(none->host == "host");
  CHECK(none->port == "");
  const auto word = SplitHostPort("[::1]:http");
  REQUIRE(word);
  CHECK(word->host == "::1");
  CHECK(word->port == "http");
}

TEST_CASE("a host is found with a port and without one", "[base][unit]") {
  CHECK(HostIn("10.0.0.7:80") == "10.0.0.7");
  CHECK(HostIn("[fd00::7]:80") == "fd00::7");
  CHECK(HostIn("[fd00::7]") == "fd00::7");
  CHECK(HostIn("fd00::7") == "fd00::7");
  CHECK(HostIn("worker-0") == "worker-0");
  CHECK(HostIn("[") == "[");
  CHECK(HostIn("") == "");
}

}  // namespace
}  // namespace muster
