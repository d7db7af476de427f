#include "common/process/ports.h"

#include <fstream>
#include <set>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/no_descriptors.h"

namespace muster::process {
namespace {

// Whether a program could listen there now.
bool CanListen(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const bool can = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                   ::listen(fd, 1) == 0;
  ::close(fd);
  return can;
}

TEST_CASE("a claimed port is nobody else's, and free to listen on once it is open",
          "[process][ports]") {
  PortAllotter ours, theirs;
  Result<std::vector<PortClaim>> claims = ours.Claim("127.0.0.1", 20);
  REQUIRE(claims.ok());

  std::set<std::uint16_t> ports;
  for (const PortClaim& claim : *claims) ports.insert(claim.port());
  CHECK(ports.size() == 20);
  CHECK_FALSE(CanListen(claims->front().port()));
  claims->front().Open();
  CHECK(CanListen(claims->front().port()));
  // Whoever else asks begins elsewhere, and would pass over these.
  const Result<std::vector<PortClaim>> others = theirs.Claim("127.0.0.1", 200);
  REQUIRE(others.ok());
  for (const PortClaim& claim : *others) CHECK_FALSE(ports.contains(claim.port()));
}

TEST_CASE("ports are outside the range that the kernel hands out, and come again late",
          "[process][ports]") {
  std::uint32_t low = 0, high = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high;
  PortAllotter allotter;
  std::set<std::uint16_t> seen;
  for (int i = 0; i < 50; ++i) {
    const Result<std::vector<PortClaim>> claim = allotter.Claim("127.0.0.1", 1);
    REQUIRE(claim.ok());
    const std::uint16_t port = claim->front().port();
    if (low >= 12'000) CHECK((port < low || port > high));
    CHECK(seen.insert(port).second);
  }
}

TEST_CASE("ports of an address that this machine does not have are refused", "[process][ports]") {
  PortAllotter allotter;
  CHECK(allotter.Claim("203.0.113.7", 1).status().code() == StatusCode::kInvalidArgument);
  CHECK(allotter.Claim("example", 1).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("that no descriptor is left for ports is said and not taken for ports in use",
          "[process][ports]") {
  PortAllotter allotter;
  const Result<std::vector<PortClaim>> claims = [&] {
    const testing::NoMoreDescriptors few(6);
    return allotter.Claim("127.0.0.1", 20);
  }();

  CHECK(claims.status().code() == StatusCode::kResourceExhausted);
  CHECK(Message(claims.status()).find("Too many open files") != std::string::npos);
}

}  // namespace
}  // namespace muster::process
