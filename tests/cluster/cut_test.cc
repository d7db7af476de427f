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

TEST_CASE("all workers that are cut off while they build what is their own build it again",
          "[cluster][program][cut][CCF-06]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const std::string what = GENERATE(as<std::string>(), "built", "valued");
  const CutCluster cluster(/*ps=*/1, /*workers=*/2);
  const TempFolder gate;
  const std::string id = Submit(cluster, {what, gate.path(), "200"});
  const auto have_begun = [&](std::size_t builds) {
    return Eventually(seconds(60), [&] { return ReadAll(gate / "builds").size() == builds; });
  };
  REQUIRE(have_begun(2));
  CHECK(cluster.CutAndNotice(id, {0, 1}) < kNoticedMs);
  cluster.networks().Mend(0);
  cluster.networks().Mend(1);
  CHECK(cluster.AreBack(id));
  CHECK(have_begun(4));
  gate.Write("gate", "");

  const int code = cluster.Wait(id);
  CAPTURE(what, Story(cluster.Describe(id)), cluster.Output(id));
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("built exact") != std::string::npos);
}

// Closures that stand behind gates, one on each of two workers, so that a cut comes at one moment
// of theirs: before they write, or when they have.
class Gated {
 public:
  Gated() {
    id_ = Submit(cluster_, {"gated", folder_.path(), "20"});
    REQUIRE(Have("begun", 2));
  }

  const CutCluster& cluster() const { return cluster_; }
  void Open(const std::string& gate) const { folder_.Write(gate, ""); }
  // So many closures have, at least.
  bool Have(const std::string& what, std::size_t closures) const {
    return Eventually(seconds(60), [&] { return ReadAll(folder_ / what).size() >= closures; });
  }
  void Cut(const std::vector<int>& hosts) const {
    CHECK(cluster_.CutAndNotice(id_, hosts) < kNoticedMs);
  }
  void Mend(const std::vector<int>& hosts) const {
    for (const int host : hosts) cluster_.networks().Mend(host);
  }
  // The workers come back, and with them whatever their old executors have still to say.
  void MendAndWait(const std::vector<int>& hosts) const {
    Mend(hosts);
    CHECK(cluster_.AreBack(id_));
  }
  // The program ends by itself, and has counted each closure once.
  void CheckEnd() const {
    const int code = cluster_.Wait(id_);
    CAPTURE(Story(cluster_.Describe(id_)), cluster_.Output(id_));
    CHECK(code == 0);
    CHECK(cluster_.Output(id_).find("built exact") != std::string::npos);
  }

 private:
  const CutCluster cluster_{/*ps=*/1, /*workers=*/2};
  const TempFolder folder_;
  std::string id_;
};

std::vector<int> OneAndAll() {
  return GENERATE(as<std::vector<int>>(), std::vector<int>{1}, std::vector<int>{0, 1});
}

TEST_CASE("a closure whose worker is cut off before it writes counts once",
          "[cluster][program][cut][CCF-02][CCF-03]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const std::vector<int> hosts = OneAndAll();
  const Gated gated;
  gated.Cut(hosts);

  // Those that are cut off write, too: into a cable that leads nowhere, until it is mended.
  gated.Open("write");
  gated.MendAndWait(hosts);
  gated.Open("end");
  gated.CheckEnd();
}

TEST_CASE("a closure whose worker is cut off when it has written counts once",
          "[cluster][program][cut][CCF-02][CCF-03]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const std::vector<int> hosts = OneAndAll();
  const Gated gated;
  gated.Open("write");
  REQUIRE(gated.Have("written", 2));
  gated.Cut(hosts);

  // Those that are cut off end, too, and say so to nobody.
  gated.Open("end");
  // One alone never comes back: the other one does what is left. With both, the program may have
  // ended before they are seen to be back.
  if (hosts.size() > 1) gated.Mend(hosts);
  gated.CheckEnd();
}

}  // namespace
}  // namespace muster::testing
