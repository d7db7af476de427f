#include "ps/client/server_session.h"
#include "tests/support/catch.h"

namespace muster::ps {
namespace {

TEST_CASE("links to servers have three names, and any other is refused by name", "[ps][unit]") {
  CHECK(LinkModeOf("").value() == LinkMode::kAuto);
  CHECK(LinkModeOf("auto").value() == LinkMode::kAuto);
  CHECK(LinkModeOf("tcp").value() == LinkMode::kTcp);
  CHECK(LinkModeOf("local").value() == LinkMode::kLocal);
  CHECK(LinkModeOf("Tcp").status() == InvalidArgument("link \"Tcp\": wanted auto, tcp or local"));
}

}  // namespace
}  // namespace muster::ps
