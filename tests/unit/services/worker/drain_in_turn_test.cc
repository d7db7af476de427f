#include "services/worker/drain_in_turn.h"

#include <optional>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster::services {
namespace {

// Parts that take what time a test says, or all that they are given.
struct Ending {
  FakeScheduler scheduler;
  std::vector<Millis> limits;
  std::optional<TimePoint> over;
  const TimePoint begin = scheduler.Now();

  DrainPart Part(std::optional<Millis> takes = std::nullopt) {
    return [this, takes](Millis limit, std::function<void()> then) {
      limits.push_back(limit);
      (void)scheduler.RunAfter(takes.value_or(limit), std::move(then));
    };
  }
  void Run(Millis grace, std::vector<DrainPart> parts) {
    DrainInTurn(scheduler, begin, grace, std::move(parts), [this] { over = scheduler.Now(); });
    scheduler.Advance(10 * grace);
  }
};

TEST_CASE("parts of a drain that take all their time share one grace", "[services][unit]") {
  Ending ending;
  const Millis grace = GENERATE(Millis(1'000), Millis(60'000), Millis(3'600'000));

  ending.Run(grace, {ending.Part(grace / 10), ending.Part(), ending.Part()});

  REQUIRE(ending.limits.size() == 3);
  CHECK(ending.limits[1] == grace * 9 / 10);
  REQUIRE(ending.over.has_value());
  CHECK(*ending.over - ending.begin <= grace + std::min(grace / 10, kLeastDrain));
}

TEST_CASE("a part of a drain has what those before it have left", "[services][unit]") {
  Ending ending;

  ending.Run(Millis(60'000),
             {ending.Part(Millis(0)), ending.Part(Millis(10'000)), ending.Part(Millis(1'000))});

  CHECK(ending.limits == std::vector<Millis>{Millis(60'000), Millis(60'000), Millis(50'000)});
  REQUIRE(ending.over.has_value());
  CHECK(*ending.over - ending.begin == Millis(11'000));
}

}  // namespace
}  // namespace muster::services
