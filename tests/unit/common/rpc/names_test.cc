#include "common/rpc/names.h"

#include "tests/support/catch.h"

namespace muster::rpc {
namespace {

TEST_CASE("a host that has the name of one of gRPC's schemes is a host", "[rpc][unit]") {
  CHECK(TargetOf("unix:5") == "dns:///unix:5");
  CHECK(TargetOf("dns:4711") == "dns:///dns:4711");
  CHECK(TargetOf("127.0.0.1:4711") == "dns:///127.0.0.1:4711");
  CHECK(TargetOf("[::1]:4711") == "[::1]:4711");
}

}  // namespace
}  // namespace muster::rpc
