// What driver and executors keep of closures that are over: nothing.
#include <fstream>
#include <new>
#include <utility>

#include <unistd.h>

#include "tests/unit/dispatch/cluster.h"

namespace muster::dispatch {
namespace {

// This process's, of its own; pages of programs and libraries come and go.
std::int64_t OwnKilobytes() {
  std::ifstream stream("/proc/self/smaps_rollup");
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("Pss_Anon:")) return std::stoll(line.substr(9));
  }
  return 0;
}

TEST_CASE("a million closures leave nothing behind in driver and executors", "[dispatch][unit]") {
  constexpr int kRounds = 100;
  constexpr int kClosures = 10'000;
  [[maybe_unused]] constexpr std::int64_t kMostGrowth = 4 * 1024;  // not under sanitizers
  FunctionTable functions;
  std::atomic<std::uint64_t> sequence{0};
  const std::uint32_t build = functions.Add("build", [](ClosureContext& context) {
    context.Build(std::make_shared<int>(0));
    return Ok();
  });
  const std::uint32_t take = functions.Add("take", [&](ClosureContext& context) {
    context.value().assign(200, std::byte{1});
    return context.LeaveBookmark(
        ClosureId(static_cast<std::uint64_t>(NumberIn(context.arguments()))), ++sequence,
        "a place");
  });
  RunningExecutor a(functions, net::LinkKind::kUnix);
  RunningExecutor b(functions, net::LinkKind::kUnix, 2);
  Driver driver(DriverOptions(functions));
  REQUIRE(ConnectTo(driver, "worker:0", a).ok());
  REQUIRE(ConnectTo(driver, "worker:1", b).ok());

  std::int64_t before = 0;
  for (int round = 0; round < kRounds; ++round) {
    // A value of each worker for each round, whose turns the closures have.
    const ClosureId value = *driver.CreatePerWorker(build, {});
    const auto id = static_cast<std::int64_t>(value.value());
    const std::array<ClosureId, 1> turns{value};
    for (int i = 0; i < kClosures; ++i) {
      const auto result = driver.Schedule(take, BytesOfValue(id), Soon(), turns);
      REQUIRE(result.ok());
      if (i % 1'000 == 0) REQUIRE(driver.Fetch(*result, Soon()).ok());
    }
    REQUIRE(driver.Join(Soon()).ok());
    driver.ReleasePerWorker(value);
    if (round == kRounds / 5) before = OwnKilobytes();
  }
  const std::int64_t after = OwnKilobytes();
  CAPTURE(before, after);
  CHECK(driver.counts().succeeded == kRounds * kClosures);
  CHECK(driver.counts().futures == 0);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(before > 0);
  CHECK(after < before + kMostGrowth);
#endif
}

// Where a frame is taken apart there is no memory, once.
struct OnceNoMemory final : DriverWatcher {
  void OnRequeued(const std::string&, std::span<const ClosureId>) override {}
  void OnReturned(const std::string&, ClosureId, const Status&) override {
    if (!std::exchange(thrown, true)) throw std::bad_alloc();
  }
  void OnGivenAgain(const std::string&, ClosureId) override {}
  bool thrown = false;
};

TEST_CASE("a driver that finds no memory for a result says so and is as good as new",
          "[dispatch][unit]") {
  FunctionTable functions;
  const std::uint32_t none = functions.Add("none", [](ClosureContext&) { return Ok(); });
  const std::uint32_t away = functions.Add("away", [](ClosureContext& context) {
    context.Blame(Origin::kWorker, Phase::kRun, "");
    return Unavailable("not now");
  });
  OnceNoMemory watcher;
  Driver::Options options = DriverOptions(functions);
  options.watcher = &watcher;
  RunningExecutor executor(functions, net::LinkKind::kUnix);
  Driver driver(std::move(options));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  REQUIRE(driver.Schedule(away, {}, Soon()).ok());

  const Status joined = driver.Join(Soon());

  CHECK(joined.code() == StatusCode::kResourceExhausted);
  CHECK(Message(joined).find("no memory for what worker:0 has sent") != std::string::npos);
  REQUIRE(ConnectTo(driver, "worker:1", executor).ok());
  REQUIRE(driver.Schedule(none, {}, Soon()).ok());
  CHECK(driver.Join(Soon()).ok());
}

TEST_CASE("262,144 queued closures of 64 bytes and a future each take less than 300 MiB",
          "[dispatch][unit]") {
  constexpr int kClosures = 262'144;
  [[maybe_unused]] constexpr std::int64_t kMostGrowth = 300 * 1024;  // not under sanitizers
  FunctionTable functions;
  const std::uint32_t none = functions.Add("none", [](ClosureContext&) { return Ok(); });
  const std::array<std::byte, 64> arguments{};
  Driver driver(DriverOptions(functions));
  std::vector<RemoteValue> futures;
  futures.reserve(kClosures);
  const std::int64_t before = OwnKilobytes();

  for (int i = 0; i < kClosures; ++i) {
    auto future = driver.Schedule(none, arguments, Soon());
    REQUIRE(future.ok());
    futures.push_back(*std::move(future));
  }

  const std::int64_t after = OwnKilobytes();
  CAPTURE(before, after);
  CHECK(driver.counts().queued == kClosures);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(before > 0);
  CHECK(after < before + kMostGrowth);
#endif
}

TEST_CASE("a worker that joins builds more per-worker values than a link keeps of closures",
          "[dispatch][unit]") {
  FunctionTable functions;
  const std::uint32_t build = functions.Add("build", [](ClosureContext& context) {
    context.Build(std::make_shared<std::size_t>(context.arguments().size()));
    return Ok();
  });
  const std::vector<std::byte> table(std::size_t{80} << 20);
  Driver::Options options = DriverOptions(functions);
  options.dispatch.argument_bytes = 1'024;
  RunningExecutor executor(functions, net::LinkKind::kUnix);
  Driver driver(std::move(options));
  const ClosureId first = *driver.CreatePerWorker(build, table);
  const ClosureId second = *driver.CreatePerWorker(build, table);

  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());

  CHECK(ToString(driver.AwaitPerWorker(first, "worker:0", Soon()).status()) == "OK");
  CHECK(ToString(driver.AwaitPerWorker(second, "worker:0", Soon()).status()) == "OK");
  CHECK(driver.counts().losses == 0);
}

TEST_CASE("arguments of closures that wait take 256 MiB, then schedule waits", "[dispatch][unit]") {
  FunctionTable functions;
  const std::uint32_t none = functions.Add("none", [](ClosureContext&) { return Ok(); });
  const std::vector<std::byte> quarter(std::size_t{64} << 20);
  RunningExecutor executor(functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(functions));
  for (int i = 0; i < 4; ++i) REQUIRE(driver.Schedule(none, quarter, Soon()).ok());
  const std::span<const std::byte> one_more = std::span(quarter).first(1);

  CHECK(driver.Schedule(none, one_more, TimePoint::min()).status().code() ==
        StatusCode::kDeadlineExceeded);

  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  CHECK(driver.Schedule(none, one_more, Soon()).ok());
  CHECK(driver.Join(Soon()).ok());
}

}  // namespace
}  // namespace muster::dispatch
