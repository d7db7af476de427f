#include "common/base/ids.h"

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("attempts of a later coordinator are newer than all before", "[base][unit]") {
  CHECK(Attempt(Epoch(2), 1) > Attempt(Epoch(1), 0xffffffff));
}

}  // namespace
}  // namespace muster
