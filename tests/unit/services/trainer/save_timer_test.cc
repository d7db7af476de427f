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
  CHECK(timer.StepsUntilDue(5) == UINT64_MAX);
}

TEST_CASE("Closures are scheduled as far as they are done in time", "[trainer][unit]") {
  FakeScheduler clock;
  const SaveTimer timer(clock, seconds(60), 1000);
  CHECK(timer.StepsUntilDue(1000) == SaveTimer::kLeast);

  clock.Advance(seconds(20));
  CHECK(timer.StepsUntilDue(3000) == 4000);  // 2000 in 20 s, 40 s to go
  clock.Advance(seconds(39));
  CHECK(timer.StepsUntilDue(1100) == SaveTimer::kLeast);
  CHECK_FALSE(timer.due());
  clock.Advance(seconds(1));
  CHECK(timer.due());
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
