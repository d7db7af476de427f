#include "common/base/time_left.h"

#include <chrono>

#include "tests/support/catch.h"

namespace muster {

TEST_CASE("a limit that the clock does not reach is none, and no time that is over",
          "[base][unit]") {
  const TimePoint now = std::chrono::steady_clock::now();

  CHECK(After(Millis::max()) == TimePoint::max());
  CHECK(After(std::chrono::hours(24 * 365 * 400)) == TimePoint::max());
  CHECK(After(std::chrono::hours(24 * 365)) < TimePoint::max());
  CHECK(After(std::chrono::hours(24 * 365)) > now);
  CHECK(After(Millis(0)) >= now);
  CHECK(*TimeLeft(Millis::max())() > std::chrono::hours(24 * 365));
}

}  // namespace muster
