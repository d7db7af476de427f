#include "common/base/suggest.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace muster {
namespace {

const std::vector<std::string> kFields = {"steps", "epochs", "batch_size", "learning_rate"};

TEST_CASE("a slip of the fingers is answered with the name that was meant", "[base][unit]") {
  CHECK(DidYouMean("step", kFields) == "; did you mean \"steps\"?");
  CHECK(ClosestName("epcohs", kFields) == "epochs");  // swapped neighbours
  CHECK(ClosestName("learnin_rat", kFields) == "learning_rate");
}

TEST_CASE("case and the choice of dash or underscore are no difference", "[base][unit]") {
  CHECK(EditDistance("Batch-Size", "batch_size") == 0);
  CHECK(ClosestName("batch-sise", kFields) == "batch_size");
}

TEST_CASE("a name unlike every other gets no suggestion", "[base][unit]") {
  CHECK(DidYouMean("optimizer", kFields).empty());
  CHECK(DidYouMean("x", std::vector<std::string>{"y"}).empty());
  CHECK(DidYouMean("", kFields).empty());
  CHECK(DidYouMean(std::string(10'000'000, 'a'), kFields).empty());
}

TEST_CASE("the distance counts letters inserted, removed, replaced and swapped", "[base][unit]") {
  CHECK(EditDistance("", "abc") == 3);
  CHECK(EditDistance("abc", "") == 3);
  CHECK(EditDistance("kitten", "sitting") == 3);
  CHECK(EditDistance("ab", "ba") == 1);
}

}  // namespace
}  // namespace muster
