// Programs with variables on parameter servers, on real daemons: trained, counted exactly while
// workers are killed, and told when a server is (tests/programs/servers.cc is what they do).
#include <csignal>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const std::string kProgram = MUSTER_TEST_PROGRAMS "/servers";

struct ServersFixture {
  Cluster cluster{{.ps = 2, .workers = 2}};

  // The id of one that was taken.
  std::string Submit(const std::vector<std::string>& arguments) {
    std::vector<std::string> flags{"submit", "--strategy", "parameter_server", "--", kProgram};
    flags.insert(flags.end(), arguments.begin(), arguments.end());
    const RunResult submitted = cluster.Muster(flags);
    CAPTURE(submitted.err, cluster.up_log());
    REQUIRE(submitted.code == 0);
    return submitted.out.substr(0, submitted.out.find('\n'));
  }
  std::string Output(const std::string& id) { return cluster.Muster({"logs", id, "chief:0"}).out; }
  bool HasPrinted(const std::string& id, const std::string& line) {
    return Eventually(seconds(60), [&] { return Output(id).find(line) != std::string::npos; });
  }
};

TEST_CASE_METHOD(ServersFixture, "a program trains variables that live on parameter servers",
                 "[cluster][program][CCO-07]") {
  const std::string id = Submit({"train", "300"});
  const int code = cluster.Wait(id, seconds(120));
  CAPTURE(Output(id), cluster.up_log());
  CHECK(code == 0);
  CHECK(Output(id).find("error small") != std::string::npos);
}

TEST_CASE_METHOD(ServersFixture,
                 "a counter on a server counts each closure once, though workers are killed",
                 "[cluster][program][CCF-02][CCF-04]") {
  const TempFolder folder;
  const std::string id = Submit({"rounds", folder / "enough"});
  REQUIRE(HasPrinted(id, "rounds begin"));
  for (int n = 1; n <= 2; ++n) {
    REQUIRE(cluster.Kill("worker:1", SIGKILL));
    CHECK(Eventually(seconds(30), [&] {
      const v1::Job job = cluster.Describe(id);
      return CountEvents(job, "WORKER_LOST") == n && CountEvents(job, "WORKER_BACK") == n;
    }));
  }
  folder.Write("enough", "");
  const int code = cluster.Wait(id, seconds(120));
  CAPTURE(Story(cluster.Describe(id)), cluster.up_log(), Output(id));
  CHECK(code == 0);
  CHECK(Output(id).find("rounds exact") != std::string::npos);
}

TEST_CASE_METHOD(ServersFixture, "a program is told by PsUnavailable that a server was killed",
                 "[cluster][program][CCF-10]") {
  const TempFolder folder;
  const std::string id = Submit({"lost", folder / "begun"});
  REQUIRE(HasPrinted(id, "begun"));
  REQUIRE(cluster.Kill("ps:0", SIGKILL));
  const int code = cluster.Wait(id, seconds(120));
  CAPTURE(Output(id), cluster.up_log());
  CHECK(code == 0);
  CHECK(Output(id).find("lost ps:0") != std::string::npos);
}

}  // namespace
}  // namespace muster::testing
