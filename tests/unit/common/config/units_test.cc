#include "common/config/units.h"

#include <limits>

#include "tests/support/catch.h"

namespace muster::config {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a duration is a number and a unit, or several", "[config][unit]") {
  CHECK(ParseDuration("500ms").value() == 500ms);
  CHECK(ParseDuration("3s").value() == 3s);
  CHECK(ParseDuration("1.5h").value() == 90min);
  CHECK(ParseDuration("1m30s").value() == 90s);
  CHECK(ParseDuration("2d").value() == 48h);
  CHECK(ParseDuration("7us").value() == 7us);
  CHECK(ParseDuration("0").value() == 0s);
}

TEST_CASE("a duration without a unit or with an unknown one is refused", "[config][unit]") {
  for (const char* bad : {"", "3", "3 s", "s", "-3s", "3sec", "1.s.", "1.5ns", "400000d", "ms",
                          "99999999999999999999s", "200000d200000d"}) {
    INFO(bad);
    CHECK(ParseDuration(bad).status().code() == StatusCode::kInvalidArgument);
  }
  CHECK(Message(ParseDuration("3x").status()).find("\"3x\" is not a duration") == 0);
  CHECK(ParseDuration("106751d").ok());
  CHECK(Message(ParseDuration("106752d").status()).find("at most 106751d") != std::string::npos);
}

TEST_CASE("sizes count in 1024 with an i and in 1000 without", "[config][unit]") {
  CHECK(ParseSize("4096").value() == 4096);
  CHECK(ParseSize("256MiB").value() == 268'435'456);
  CHECK(ParseSize("1.5GiB").value() == 1'610'612'736);
  CHECK(ParseSize("64KB").value() == 64'000);
  CHECK(ParseSize("0").value() == 0);
}

TEST_CASE("a size that is no whole number of bytes is refused", "[config][unit]") {
  for (const char* bad : {"", "-1", "1.5", "12Mb", "MiB", "1 MiB", "1MiB2KiB", "9000000TiB"}) {
    INFO(bad);
    CHECK(ParseSize(bad).status().code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("what is formatted reads back as the same value", "[config][unit]") {
  for (const auto duration : {0ns, 1ns, 1500000ns, 90000000000ns, 86400000000000ns}) {
    CHECK(ParseDuration(FormatDuration(duration)).value() == duration);
  }
  CHECK(FormatDuration(1500ms) == "1500ms");
}

}  // namespace
}  // namespace muster::config
