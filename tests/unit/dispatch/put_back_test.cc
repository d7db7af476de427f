// Closures of a link that breaks go back into the queue, while threads schedule and fetch.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/dispatch/doors.h"

namespace muster::dispatch {
namespace {

TEST_CASE("closures of many threads that are put back again and again all end",
          "[dispatch][unit][CCQ-03]") {
  Program program;
  RunningExecutor stays(program.functions, net::LinkKind::kUnix);
  RunningExecutor cut(program.functions, net::LinkKind::kTcp, 4);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", stays).ok());
  REQUIRE(ConnectTo(driver, "worker:1", cut).ok());
  std::atomic<int> ended{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 10; ++t) {
    threads.emplace_back([&] {
      std::vector<RemoteValue> values;
      for (int i = 0; i < 20; ++i) {
        auto value = driver.Schedule(program.wait, {}, Soon());
        if (value.ok()) values.push_back(*value);
      }
      for (const RemoteValue& value : values) {
        if (driver.Fetch(value, Soon()).ok()) ++ended;
      }
    });
  }
  // One closure stands at the gate for good, and four more in each round, which are put back.
  for (int round = 0; round < 25; ++round) {
    program.gate.AwaitArrivals(5 + 4 * round);
    driver.Disconnect("worker:1", Unavailable("it was unplugged"));
    REQUIRE(ToString(ConnectTo(driver, "worker:1", cut)) == "OK");
  }
  program.gate.Open();
  threads.clear();

  CHECK(ended == 200);
  CHECK(ToString(driver.Join(Soon())) == "OK");
  CHECK(driver.Done().value());
  const Driver::Counts counts = driver.counts();
  CHECK(counts.succeeded == 200);
  CHECK(counts.queued + counts.in_flight == 0);
  CHECK(counts.reruns >= 100);
}

}  // namespace
}  // namespace muster::dispatch
