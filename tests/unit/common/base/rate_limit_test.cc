#include "common/base/rate_limit.h"

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster {
namespace {

TEST_CASE("what is said too often is held back and counted", "[base][unit]") {
  FakeScheduler time;
  RateLimit limit(Millis(1'000), 2);
  CHECK(limit.Ask(time.Now()) == 0);
  CHECK(limit.Ask(time.Now()) == 0);
  for (int i = 0; i < 5; ++i) CHECK_FALSE(limit.Ask(time.Now()));

  time.Advance(Millis(1'000));

  CHECK(limit.Ask(time.Now()) == 5);
  CHECK(limit.Ask(time.Now()) == 0);
  CHECK_FALSE(limit.Ask(time.Now()));
  CHECK(MoreTimes(0).empty());
  CHECK(MoreTimes(5) == " (and 5 times more since that was last said)");
}

}  // namespace
}  // namespace muster
