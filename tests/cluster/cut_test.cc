// Programs whose workers are cut off from everybody: each has a network of its own, whose cable is
// pulled and put in again. Skipped, with the reason, where this machine has no such networks.
#include <string>
#include <vector>

#include "tests/cluster/cut_cluster.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const std::string kProgram = MUSTER_TEST_PROGRAMS "/servers";
// The lease, and what a loaded machine may add to it.
constexpr std::int64_t kNoticedMs = 4'000;

std::string Submit(const CutCluster& cluster, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"submit", "--strategy", "parameter_server", "--", kProgram});
  return IdIn(cluster.Muster(arguments));
}

// One worker, then both of them, each time until they are back.
void CutAndMend(const CutCluster& cluster, const std::string& id) {
  CHECK(cluster.CutAndNotice(id, {1}) < kNoticedMs);
  cluster.networks().Mend(1);
  CHECK(cluster.AreBack(id));
  CHECK(cluster.CutAndNotice(id, {0, 1}) < kNoticedMs);
  cluster.networks().Mend(0);
  cluster.networks().Mend(1);
  CHECK(cluster.AreBack(id));
}

// A program that counts until it is told that it is enough, and then says whether all is exact.
void CountsExactly(const std::string& what) {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const CutCluster cluster(/*ps=*/1, /*workers=*/2);
  const TempFolder stop;
  const std::string id = Submit(cluster, {what, stop / "enough"});
  REQUIRE(cluster.HasPrinted(id, what + " begin"));
  CutAndMend(cluster, id);
  stop.Write("enough", "");

  const int code = cluster.Wait(id);
  CAPTURE(Story(cluster.Describe(id)), cluster.Output(id));
  CHECK(code == 0);
  CHECK(cluster.Output(id).find(what + " exact") != std::string::npos);
}

TEST_CASE("closures count once though workers are cut off, one and all, and come back",
          "[cluster][program][cut]") {
  CountsExactly("rounds");
}

TEST_CASE("under exactly_once each sample is used once though workers are cut off, one and all",
          "[cluster][program][cut]") {
  CountsExactly("samples");
}

TEST_CASE("a worker that is cut off while it builds its data holds no program up",
          "[cluster][program][cut][CCF-06]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const CutCluster cluster(/*ps=*/1, /*workers=*/2);
  const TempFolder gate;
  const std::string id = Submit(cluster, {"built", gate.path(), "200"});
  REQUIRE(Eventually(seconds(60), [&] { return ReadAll(gate / "builds").size() == 2; }));
  CHECK(cluster.CutAndNotice(id, {1}) < kNoticedMs);
  gate.Write("gate", "");

  // It never comes back.
  const int code = cluster.Wait(id);
  CAPTURE(Story(cluster.Describe(id)), cluster.Output(id));
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("built exact") != std::string::npos);
}

}  // namespace
}  // namespace muster::testing
