#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include "collectives/elastic/elastic_groups.h"
#include "common/net/socket.h"
#include "common/process/ports.h"
#include "common/process/wait_page.h"
#include "tests/support/catch.h"
#include "tests/support/no_descriptors.h"
#include "tests/unit/strategy/logged.h"

namespace muster::collectives {
namespace {

// Workers at the claimed ports, which are open for them from now on.
std::vector<GroupMember> WorkersAt(std::vector<process::PortClaim>& ports) {
  std::vector<GroupMember> workers;
  for (process::PortClaim& claim : ports) {
    claim.Open();
    workers.push_back(
        {fmt::format("worker:{}", workers.size()), fmt::format("127.0.0.1:{}", claim.port())});
  }
  return workers;
}

TEST_CASE("elastic workers meet though many who say nothing are connected to them",
          "[collectives][elastic]") {
  constexpr int kWorkers = 2;
  process::PortAllotter allotter;
  auto ports = allotter.Claim("127.0.0.1", kWorkers);
  REQUIRE(ports.ok());
  ElasticGroups::Options options{
      .rules = {.workers = kWorkers, .min_workers = kWorkers}, .workers = {}, .key = "the test's"};
  options.workers = WorkersAt(*ports);
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

TEST_CASE("an elastic worker that waits for others says so to its daemon",
          "[collectives][elastic]") {
  process::PortAllotter allotter;
  auto ports = allotter.Claim("127.0.0.1", 2);
  REQUIRE(ports.ok());
  const auto page = process::WaitPage::Create();
  REQUIRE(page.ok());
  ElasticGroups::Options options{.rules = {.workers = 2, .min_workers = 2},
                                 .workers = {},
                                 .key = "the test's",
                                 .wait_page = (*page)->path()};
  options.workers = WorkersAt(*ports);
  const auto worker = ElasticGroups::Create(options);
  REQUIRE(worker.ok());

  std::optional<process::Wait> shown;
  Status status;
  {
    const std::jthread waits([&] { status = (*worker)->Form(Millis(2'000)).status(); });
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!shown && std::chrono::steady_clock::now() < until) shown = (*page)->Get();
  }

  REQUIRE(shown.has_value());
  CHECK(shown->call == "search for the next group");
  CHECK(shown->awaited == "1 of at least 2 workers seek a group: worker 1 has ended");
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK_FALSE((*page)->Get().has_value());
}

TEST_CASE("an elastic worker that another one refuses for its key says so in its log",
          "[collectives][elastic]") {
  process::PortAllotter allotter;
  auto ports = allotter.Claim("127.0.0.1", 2);
  REQUIRE(ports.ok());
  ElasticGroups::Options options{
      .rules = {.workers = 2, .min_workers = 2}, .workers = {}, .key = "the test's"};
  options.workers = WorkersAt(*ports);
  const auto worker = ElasticGroups::Create(options);
  options.rules.self = 1;
  options.key = "another";
  const auto other = ElasticGroups::Create(options);
  REQUIRE(worker.ok());
  REQUIRE(other.ok());
  Status status;

  const std::string said =
      testing::log_of([&] { status = (*worker)->Form(Millis(2'000)).status(); });

  CAPTURE(said, ToString(status));
  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(said.find("worker:1 at " + options.workers[1].address + " refuses this worker") !=
        std::string::npos);
}

std::chrono::nanoseconds CpuTimeOfThisProcess() {
  timespec time{};
  REQUIRE(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

TEST_CASE("an elastic worker without descriptors waits for some, and answers then",
          "[collectives][elastic]") {
  process::PortAllotter allotter;
  auto ports = allotter.Claim("127.0.0.1", 2);
  REQUIRE(ports.ok());
  ElasticGroups::Options options{
      .rules = {.workers = 2, .min_workers = 1}, .workers = {}, .key = "the test's"};
  options.workers = WorkersAt(*ports);
  const auto worker = ElasticGroups::Create(options);
  REQUIRE(worker.ok());
  const net::Fd late(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address{.sin_family = AF_INET,
                            .sin_port = htons((*ports)[0].port()),
                            .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                            .sin_zero = {}};

  const auto begin = CpuTimeOfThisProcess();
  auto spent = begin;
  testing::KnockWithoutDescriptors(late.get(), address, 500,
                                   [&] { spent = CpuTimeOfThisProcess() - begin; });
  CHECK(spent < std::chrono::milliseconds(100));
}

}  // namespace
}  // namespace muster::collectives
