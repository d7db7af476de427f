#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "collectives/elastic/elastic_groups.h"
#include "common/net/socket.h"
#include "common/process/ports.h"
#include "tests/support/catch.h"

namespace muster::collectives {
namespace {

TEST_CASE("elastic workers meet though many who say nothing are connected to them",
          "[collectives][elastic]") {
  constexpr int kWorkers = 2;
  process::PortAllotter allotter;
  auto ports = allotter.Claim("127.0.0.1", kWorkers);
  REQUIRE(ports.ok());
  ElasticGroups::Options options{
      .rules = {.workers = kWorkers, .min_workers = kWorkers}, .workers = {}, .key = "the test's"};
  for (process::PortClaim& claim : *ports) {
    claim.Open();
    options.workers.push_back({fmt::format("worker:{}", options.workers.size()),
                               fmt::format("127.0.0.1:{}", claim.port())});
  }
  std::vector<std::unique_ptr<ElasticGroups>> workers;
  for (int i = 0; i < kWorkers; ++i) {
    options.rules.self = i;
    auto worker = ElasticGroups::Create(options);
    REQUIRE(worker.ok());
    workers.push_back(*std::move(worker));
  }
  std::vector<net::Fd> strangers;
  for (const GroupMember& member : options.workers) {
    for (int i = 0; i < 50; ++i) {
      auto stranger =
          net::ConnectTcp(member.address, std::chrono::steady_clock::now() + Millis(10'000));
      REQUIRE(stranger.ok());
      strangers.push_back(*std::move(stranger));
    }
  }
  std::vector<Status> formed(kWorkers);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kWorkers; ++i) {
      threads.emplace_back([&, i] { formed[i] = workers[i]->Form(Millis(10'000)).status(); });
    }
  }
  for (const Status& status : formed) {
    CAPTURE(ToString(status));
    CHECK(status.ok());
  }
}

}  // namespace
}  // namespace muster::collectives
