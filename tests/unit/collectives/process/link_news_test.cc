// Many links, and which of them have something to do.
#include "collectives/process/link_news.h"

#include <array>
#include <chrono>
#include <memory>

#include <sys/socket.h>

#include "tests/support/catch.h"

namespace muster::collectives {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// Both ends of a link.
struct BothEnds {
  BothEnds() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    near = std::make_unique<net::DuplexLink>(net::Fd(ends[0]), net::LinkKind::kUnix, "far",
                                             net::DuplexLink::Options{});
    far = std::make_unique<net::DuplexLink>(net::Fd(ends[1]), net::LinkKind::kUnix, "near",
                                            net::DuplexLink::Options{});
  }
  std::unique_ptr<net::DuplexLink> near, far;
};

TEST_CASE("of many links those have news that can be read or have ended",
          "[collectives][process]") {
  BothEnds quiet, spoken, ended;
  const std::array<net::DuplexLink*, 4> links{quiet.near.get(), nullptr, spoken.near.get(),
                                              ended.near.get()};
  LinkNews news;
  CHECK(news.Has(0));
  REQUIRE(spoken.far->Queue({.kind = net::kFirstOfProtocols}, {}, {}).ok());
  REQUIRE(spoken.far->Flush().ok());
  ended.far.reset();

  news.Await(links, -1, steady_clock::now() + seconds(30));

  CHECK_FALSE(news.Has(0));
  CHECK_FALSE(news.Has(1));
  CHECK(news.Has(2));
  CHECK(news.Has(3));
}

TEST_CASE("a link has news when the socket takes more of what waits and when a tick is due",
          "[collectives][process]") {
  BothEnds waits;
  REQUIRE(waits.near->Queue({.kind = net::kFirstOfProtocols}, {}, {}).ok());
  const std::array<net::DuplexLink*, 1> first{waits.near.get()};
  LinkNews news;
  news.Await(first, -1, steady_clock::now() + seconds(30));
  CHECK(news.Has(0));

  // Who was spoken to asks at once where it has no patience.
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  net::DuplexLink impatient(net::Fd(ends[0]), net::LinkKind::kUnix, "far",
                            net::DuplexLink::Options{.ping_every = Millis(0)});
  net::DuplexLink far(net::Fd(ends[1]), net::LinkKind::kUnix, "near", net::DuplexLink::Options{});
  REQUIRE(far.Queue({.kind = net::kFirstOfProtocols}, {}, {}).ok());
  REQUIRE(far.Flush().ok());
  const auto all = [](const auto&, auto, const auto&) { return Ok(); };
  REQUIRE(impatient.Receive(all).ok());
  const std::array<net::DuplexLink*, 1> second{&impatient};
  news.Await(second, -1, steady_clock::now() + seconds(30));
  CHECK(news.Has(0));
}

}  // namespace
}  // namespace muster::collectives
