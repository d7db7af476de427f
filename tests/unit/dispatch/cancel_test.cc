// Closures that are cancelled and do not hear it, and those behind a build that has to come again.
#include "tests/unit/dispatch/doors.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;

// An executor whose closures have a grace of 1 ms; what is said then opens the door, where a real
// executor ends its process.
class Impatient {
 public:
  Impatient(Program& program, std::uint32_t slots) : program_(program), executor_(Make(slots)) {}

  RunningExecutor& executor() { return *executor_; }
  std::string told() {
    const std::lock_guard lock(mutex_);
    return told_;
  }

 private:
  std::unique_ptr<RunningExecutor> Make(std::uint32_t slots) {
    Executor::Options options;
    options.cancel_grace = 1ms;
    options.on_stuck = [this](const std::string& what) {
      {
        const std::lock_guard lock(mutex_);
        told_ = what;
      }
      program_.gate.Open();
    };
    return std::make_unique<RunningExecutor>(program_.functions, net::LinkKind::kUnix, slots, "key",
                                             std::move(options));
  }

  Program& program_;
  std::mutex mutex_;
  std::string told_;
  std::unique_ptr<RunningExecutor> executor_;
};

TEST_CASE("closures that go on when their driver is gone are told, and hold up no successor then",
          "[dispatch][unit]") {
  Program program;
  Impatient impatient(program, 1);
  RunningExecutor& executor = impatient.executor();
  auto first = std::make_unique<Driver>(DriverOptions(program.functions));
  REQUIRE(ConnectTo(*first, "worker:0", executor).ok());
  REQUIRE(first->Schedule(program.deaf, {}, Soon()).ok());
  program.gate.AwaitArrivals(1);
  CHECK(executor.executor().running().Now().size() == 1);
  CHECK(executor.executor().running().Now().front().closure == ClosureId(1));
  first.reset();

  Driver next(DriverOptions(program.functions));
  REQUIRE(ConnectTo(next, "worker:0", executor).ok());
  REQUIRE(next.Schedule(program.count, {}, Soon()).ok());

  CHECK(next.Join(Soon()).ok());
  CHECK(executor.executor().running().ended() == 2);
  CHECK(impatient.told().starts_with("closure 1 goes on"));
}

TEST_CASE("join waits no longer than the grace for a closure that does not hear it is cancelled",
          "[dispatch][unit]") {
  Program program;
  Impatient impatient(program, 2);
  RunningExecutor& executor = impatient.executor();
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  REQUIRE(driver.Schedule(program.deaf, {}, Soon()).ok());
  program.gate.AwaitArrivals(1);
  REQUIRE(driver.Schedule(program.fail, {}, Soon()).ok());

  CHECK(Message(driver.Join(Soon())) == "closure 2: the user's own");

  CHECK(impatient.told() ==
        "closure 1 goes on 1 ms after it was cancelled, since another one has failed: a function "
        "that takes long asks muster::cancellation()");
}

TEST_CASE("a closure behind a build that a server's trouble ends waits for the next build",
          "[dispatch][unit][CCE-08]") {
  Program program;
  std::atomic<int> tries{0};
  const std::uint32_t flaky = program.functions.Add("flaky", [&](ClosureContext& context) {
    if (++tries == 1) {
      context.Blame(Origin::kPs, Phase::kRun, "ps:0");
      return Unavailable("refused");
    }
    context.Build(std::make_shared<std::int64_t>(7));
    return Ok();
  });
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());

  const ClosureId value = *driver.CreatePerWorker(flaky, {});
  const auto used = driver.Schedule(program.use, BytesOfValue(value.value()), Soon());

  REQUIRE(used.ok());
  const auto fetched = used->Fetch(Soon());
  REQUIRE(ToString(fetched.status()) == "OK");
  CHECK(NumberIn(*fetched) == 7);
  CHECK(tries == 2);
}

}  // namespace
}  // namespace muster::dispatch
