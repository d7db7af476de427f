// A parameter server of another user on the same host: no memory is shared with it.
#include "tests/support/other_user.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include "tests/support/catch.h"
#include "tests/unit/ps/client/small_cluster.h"

namespace muster::ps {
namespace {

using testing::kW;
using testing::OneVariable;
using testing::SmallCluster;

// What a client comes to that pulls the variable of a plan.
std::string Pull(const std::string& plan_bytes, LinkMode link) {
  v1::JobPlan plan;
  if (!plan.ParseFromString(plan_bytes)) return "it was told no plan";
  auto client = PsClient::Connect(
      plan, {.key = testing::ModelKey(), .link = link, .host_id = *net::HostId()});
  if (!client.ok()) return Message(client.status());
  if (const Status pulled = (*client)->PullDense(kW); !pulled.ok()) return Message(pulled);
  const LinkBytes bytes = (*client)->bytes();
  return fmt::format("{} bytes by TCP, {} by shared memory", bytes.tcp, bytes.local);
}

}  // namespace

TEST_CASE(
    "a parameter server of another user on this host is reached by TCP, and not by its socket",
    "[ps_client][unit]") {
  if (!muster::testing::MayBeOthers()) return;
  const auto [link, reachable] = GENERATE(table<LinkMode, bool>(
      {{LinkMode::kAuto, true}, {LinkMode::kAuto, false}, {LinkMode::kLocal, true}}));
  const muster::testing::Whisper plan;
  const muster::testing::OtherUser other([&, mode = link] { return Pull(plan.Hear(), mode); });
  SmallCluster cluster(OneVariable(), 1);
  if (reachable) {
    const std::string socket = cluster.server(0).endpoint().unix_path();
    REQUIRE(::chmod(cluster.directory().c_str(), 0777) == 0);
    REQUIRE(::chmod(socket.c_str(), 0777) == 0);
  }

  plan.Say(cluster.plan().SerializeAsString());
  const std::string words = other.Words();

  CAPTURE(reachable, words);
  if (link == LinkMode::kAuto) {
    CHECK(words == "4000 bytes by TCP, 0 by shared memory");
  } else {
    CHECK(words.find("is user 0's, and this one user 12345's: shared memory is for processes of "
                     "one user. Run both as one, or connect them by TCP") != std::string::npos);
  }
}

}  // namespace muster::ps
