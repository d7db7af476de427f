#include "common/base/byte_count.h"

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("numbers of bytes are written for people", "[base][unit]") {
  CHECK(ByteCount(0) == "0 B");
  CHECK(ByteCount(1023) == "1023 B");
  CHECK(ByteCount(1536) == "1.5 KiB");
  CHECK(ByteCount(3ull << 30) == "3.0 GiB");
}

}  // namespace
}  // namespace muster
