// What the environment of a driver says of how closures are handed out.
#include "program/driver_options.h"

#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"

namespace muster::program::internal {
namespace {

using namespace std::chrono_literals;

constexpr const char* kDelay = "TF_COORDINATOR_SCHEDULE_START_DELAY";
constexpr const char* kMostDelay = "TF_COORDINATOR_SCHEDULE_START_DELAY_MAX";
constexpr const char* kFailures = "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES";
constexpr const char* kTimeouts = "TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS";

TEST_CASE("workers begin without delay where the environment says nothing, or nothing of use",
          "[program][unit][CCO-23]") {
  const Environment bare = FixedEnvironment({});
  const Environment empty =
      FixedEnvironment({{kDelay, ""}, {kMostDelay, ""}, {kFailures, ""}, {kTimeouts, ""}});

  for (const Environment& environment : {bare, empty}) {
    const auto read = DriverOptions(environment);

    REQUIRE(read.ok());
    CHECK(read->start_delay == 0ms);
    CHECK(read->most_start_delay == 0ms);
    CHECK(read->dispatch.errors.ps_failures == 3);
    CHECK(read->dispatch.errors.timeouts == std::nullopt);
  }
}

TEST_CASE("the delay of workers is seconds in the environment, and so is the longest",
          "[program][unit][CCO-23]") {
  struct Case {
    const char* text;
    std::chrono::milliseconds means;
  };
  const auto one = GENERATE(values<Case>({{"2", 2s},
                                          {"0", 0s},
                                          {"0.25", 250ms},
                                          {".5", 500ms},
                                          {"1e1", 10s},
                                          {"0.0004", 0ms},
                                          {"1000000", 1'000'000s}}));

  const auto delay = DriverOptions(FixedEnvironment({{kDelay, one.text}, {kMostDelay, "4"}}));
  const auto most = DriverOptions(FixedEnvironment({{kDelay, "2"}, {kMostDelay, one.text}}));

  INFO(one.text);
  REQUIRE(delay.ok());
  CHECK(delay->start_delay == one.means);
  CHECK(delay->most_start_delay == 4s);
  REQUIRE(most.ok());
  CHECK(most->start_delay == 2s);
  CHECK(most->most_start_delay == one.means);
}

TEST_CASE("a delay that is no number of seconds is refused, and the variable named",
          "[program][unit][CCO-23]") {
  const std::string variable = GENERATE(as<std::string>(), kDelay, kMostDelay);
  const std::string text = GENERATE(as<std::string>(), "soon", "2s", "2 ", " 2", "2,5", "0x10",
                                    "-1", "-0.001", "1000001", "1e400", "inf", "nan", "--");

  const auto read = DriverOptions(FixedEnvironment({{variable, text}}));

  CHECK(read.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(read.status()) ==
        variable + "=\"" + text +
            "\" in the environment: it is a number of seconds, from 0 to 1000000");
}

TEST_CASE("closures wait an hour for a worker", "[program][unit][CCF-16]") {
  const auto read = DriverOptions(FixedEnvironment({}));

  REQUIRE(read.ok());
  CHECK(read->dispatch.worker_patience == 3'600s);
}

TEST_CASE("what counts as transient is counts in the environment", "[program][unit][CCF-10]") {
  const auto read = DriverOptions(FixedEnvironment({{kFailures, "10"}, {kTimeouts, "0"}}));
  REQUIRE(read.ok());
  CHECK(read->dispatch.errors.ps_failures == 10);
  CHECK(read->dispatch.errors.timeouts == 0);

  const std::string variable = GENERATE(as<std::string>(), kFailures, kTimeouts);
  const std::string text =
      GENERATE(as<std::string>(), "many", "-1", "1.5", "1e3", " 1", "1 ", "4294967296");
  const auto refused = DriverOptions(FixedEnvironment({{variable, text}}));
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(refused.status()) ==
        variable + "=\"" + text +
            "\" in the environment: it is a whole number, from 0 to 4294967295");
}

}  // namespace
}  // namespace muster::program::internal
