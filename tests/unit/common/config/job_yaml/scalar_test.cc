#include "common/config/job_yaml/scalar.h"

#include "tests/support/catch.h"

namespace muster::config {
namespace {

TEST_CASE("whole numbers are decimal, complete and in range", "[config][unit]") {
  CHECK(ParseInt64("0") == 0);
  CHECK(ParseInt64("-12") == -12);
  CHECK(ParseInt64("9223372036854775807") == INT64_MAX);
  CHECK(ParseUint64("18446744073709551615") == UINT64_MAX);
  for (const char* text : {"", "-", "010", "0x10", "1e3", "1.0", "1_000", " 1", "1 ", "+1",
                           "9223372036854775808", "yes", "-01"}) {
    CAPTURE(text);
    CHECK_FALSE(ParseInt64(text).has_value());
  }
  CHECK_FALSE(ParseUint64("-1").has_value());
}

TEST_CASE("numbers are finite decimals", "[config][unit]") {
  CHECK(ParseDouble("0.5") == 0.5);
  CHECK(ParseDouble("-1e-3") == -1e-3);
  CHECK(ParseDouble("3") == 3.0);
  CHECK(ParseDouble("0") == 0.0);
  for (const char* text :
       {"", ".inf", "inf", "nan", "1e999", "0x1p3", "1,5", "00.5", ".5", "1.5x"}) {
    CAPTURE(text);
    CHECK_FALSE(ParseDouble(text).has_value());
  }
}

TEST_CASE("only true and false are booleans", "[config][unit]") {
  CHECK(ParseBool("true") == true);
  CHECK(ParseBool("false") == false);
  for (const char* text : {"yes", "no", "on", "off", "True", "1", ""}) {
    CAPTURE(text);
    CHECK_FALSE(ParseBool(text).has_value());
  }
}

}  // namespace
}  // namespace muster::config
