#include "common/base/wall_time.h"

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("wall time is told in UTC by RFC 3339", "[base][unit]") {
  CHECK(UtcText(0) == "1970-01-01T00:00:00Z");
  CHECK(UtcText(1'767'323'045) == "2026-01-02T03:04:05Z");
  CHECK(UtcTextOfNanos(1'767'323'045'000'000'006) == "2026-01-02T03:04:05.000000006Z");
  CHECK(UtcTextOfNanos(-1) == "1969-12-31T23:59:59.999999999Z");
}

TEST_CASE("wall time is counted from 1970 and rounded down", "[base][unit]") {
  const WallTime time{std::chrono::microseconds(1'999)};
  CHECK(UnixMillis(time) == 1);
  CHECK(UnixMicros(time) == 1'999);
  CHECK(UnixMillis(WallTime{std::chrono::microseconds(-1)}) == -1);
}

}  // namespace
}  // namespace muster
