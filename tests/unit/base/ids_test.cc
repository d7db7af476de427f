#include "common/base/ids.h"

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("an evaluation's closure tells its round and its batch", "[base][unit]") {
  const EvaluationId id(3, 7);

  CHECK(EvaluationId(id.value()).round() == 3);
  CHECK(EvaluationId(id.value()).batch() == 7);
  CHECK(id.value() == (std::uint64_t{3} << 32 | 7));
}

TEST_CASE("attempts of a later coordinator are newer than all before", "[base][unit]") {
  CHECK(Attempt(Epoch(2), 1) > Attempt(Epoch(1), 0xffffffff));
}

}  // namespace
}  // namespace muster
