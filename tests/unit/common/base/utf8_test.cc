#include "common/base/utf8.h"

#include <string>

#include "common/base/status.h"
#include "tests/support/catch.h"

namespace muster {
namespace {

using namespace std::string_literals;

TEST_CASE("bytes that are no UTF-8 are written out, all others stay", "[base][unit]") {
  CHECK(ToValidUtf8("caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80") ==
        "caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
  CHECK(ToValidUtf8("caf\xE9") == "caf\\xe9");
  CHECK(ToValidUtf8("\xFF\xFEn\0a"s) == "\\xff\\xfen\0a"s);
  CHECK(ToValidUtf8("cut \xE2\x82") == "cut \\xe2\\x82");
}

TEST_CASE("a text is cut between characters", "[base][unit]") {
  CHECK(Utf8Beginning("caf\xC3\xA9s", 9) == "caf\xC3\xA9s");
  CHECK(Utf8Beginning("caf\xC3\xA9s", 5) == "caf\xC3\xA9");
  CHECK(Utf8Beginning("caf\xC3\xA9s", 4) == "caf");
  CHECK(Utf8Beginning("\xF0\x9F\x98\x80", 3).empty());
  CHECK(Utf8Beginning("a\xE9\xE9", 2) == "a\\xe9");
  CHECK(Utf8Beginning("a", 0).empty());
}

TEST_CASE("the first bad byte is found", "[base][unit]") {
  CHECK(FirstBadUtf8("") == std::string_view::npos);
  CHECK(FirstBadUtf8("\xC3\xA9") == std::string_view::npos);
  CHECK(FirstBadUtf8("ab\xC3\xA9\xE9z") == 4);
}

TEST_CASE("the text of an error is UTF-8, whatever it was made of", "[base][unit]") {
  CHECK(Message(InvalidArgument("no column {}", "pr\xEDs")) == "no column pr\\xeds");
  CHECK(Message(MakeStatus(StatusCode::kDataLoss, "\xFF")) == "\\xff");
  CHECK(Message(Annotate(NotFound("x"), "/data/\xFF.csv")) == "/data/\\xff.csv: x");
}

}  // namespace
}  // namespace muster
