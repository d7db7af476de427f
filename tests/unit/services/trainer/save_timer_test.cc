#include "services/trainer/save_timer.h"

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster::trainer {
namespace {

using std::chrono::seconds;

TEST_CASE("Without a time nothing is due, and closures are scheduled as far as one likes",
          "[trainer][unit]") {
  FakeScheduler clock;
  const SaveTimer timer(clock, Millis(0), 0);
  clock.Advance(std::chrono::hours(1000));

  CHECK_FALSE(timer.due());
  CHECK(timer.StepsUntilDue(5, 1) == UINT64_MAX);
}

TEST_CASE("Closures are scheduled as far as they are done in time", "[trainer][unit]") {
  FakeScheduler clock;
  const SaveTimer timer(clock, seconds(60), 1000);

  clock.Advance(seconds(20));
  CHECK(timer.StepsUntilDue(3000, 1) == 4000);  // 2000 in 20 s, 40 s to go
  clock.Advance(seconds(39));
  CHECK(timer.StepsUntilDue(1100, 3) == 6);  // nearly up: what keeps them at work
  CHECK_FALSE(timer.due());
  clock.Advance(seconds(1));
  CHECK(timer.due());
}

TEST_CASE("Before the first step has ended workers have two each, then as many as its rate says",
          "[trainer][unit]") {
  FakeScheduler clock;
  const SaveTimer timer(clock, seconds(60), 0);
  CHECK(timer.StepsUntilDue(0, 0) == 2);
  CHECK(timer.StepsUntilDue(0, 8) == 16);

  clock.Advance(seconds(1));

  CHECK(timer.StepsUntilDue(3, 1) == 177);
}

TEST_CASE("Before the first step after a save has ended the rate before it counts",
          "[trainer][unit]") {
  FakeScheduler clock;
  SaveTimer timer(clock, seconds(60), 0);
  clock.Advance(seconds(60));
  SECTION("of steps that take long") {
    timer.Saved(12, clock.Now());
    CHECK(timer.StepsUntilDue(12, 1) == 12);
  }
  SECTION("and no further than it may be wrong by") {
    timer.Saved(60'000, clock.Now());
    CHECK(timer.StepsUntilDue(60'000, 1) == SaveTimer::kUnproven);
  }
}

TEST_CASE("A save that took long puts off the next, to a tenth of the time", "[trainer][unit]") {
  FakeScheduler clock;
  SaveTimer timer(clock, seconds(60), 0);
  clock.Advance(seconds(60));
  const TimePoint began = clock.Now();
  clock.Advance(seconds(20));
  timer.Saved(100, began);

  clock.Advance(seconds(179));
  CHECK_FALSE(timer.due());
  clock.Advance(seconds(1));
  CHECK(timer.due());

  timer.Saved(200, clock.Now());
  clock.Advance(seconds(60));
  CHECK(timer.due());
}

}  // namespace
}  // namespace muster::trainer
