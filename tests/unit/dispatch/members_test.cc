// Executors that follow each other in one place, and what is said of them late.
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/dispatch/doors.h"

namespace muster::dispatch {
namespace {

constexpr Incarnation kBefore(1);
constexpr Incarnation kNow(2);

TEST_CASE("what is said of an executor that is gone leaves its successor alone",
          "[dispatch][unit]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  std::vector<std::pair<std::string, Incarnation>> lost;
  Driver::Options options = DriverOptions(program.functions);
  options.on_lost = [&](const std::string& task, Incarnation incarnation, const Status&) {
    lost.emplace_back(task, incarnation);
  };
  Driver driver(std::move(options));
  REQUIRE(driver.Connect("worker:0", kNow, executor.kind(), executor.address(), Soon()).ok());
  const auto value = driver.Schedule(program.wait, {}, Soon());
  REQUIRE(value.ok());
  program.gate.AwaitArrivals(1);

  driver.Disconnect("worker:0", Unavailable("it is gone"), kBefore);
  const std::vector<ClosureId> running{ClosureId(1)};
  const auto crash =
      driver.Crashed("worker:0", "signal SIGSEGV", Suspects::Cause::kItself, running, kBefore);

  CHECK(crash.had.empty());
  CHECK(crash.requeued.empty());
  CHECK(driver.counts().workers == 1);
  program.gate.Open();
  CHECK(ToString(driver.Join(Soon())) == "OK");
  CHECK(driver.counts().reruns == 0);
  CHECK(driver.counts().losses == 0);

  // What is said of it itself counts.
  driver.Disconnect("worker:0", Unavailable("it is gone"), kNow);

  CHECK(driver.counts().workers == 0);
  CHECK(lost == std::vector<std::pair<std::string, Incarnation>>{{"worker:0", kNow}});
}

TEST_CASE("a look at a value that a worker has not built says no more than that",
          "[dispatch][unit]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  REQUIRE(driver.Schedule(program.wait, {}, Soon()).ok());
  program.gate.AwaitArrivals(1);
  // Behind what runs: a build is alone.
  const ClosureId value = *driver.CreatePerWorker(program.build, BytesOfValue(1));

  const Status look = driver.AwaitPerWorker(value, "worker:0", TimePoint::min()).status();
  const Status wait =
      driver.AwaitPerWorker(value, "worker:0", std::chrono::steady_clock::now()).status();

  CHECK(ToString(look) == "DEADLINE_EXCEEDED: the value of worker:0 is not built");
  CHECK(Message(wait) == "the value of worker:0 is not built: 0 queued, 1 in flight on worker:0");
  program.gate.Open();
  CHECK(driver.AwaitPerWorker(value, "worker:0", Soon()).ok());
}

}  // namespace
}  // namespace muster::dispatch
