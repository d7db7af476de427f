// examples/ctr: a wide and deep model with tables on parameter servers learns what was planted.
#include <filesystem>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

TEST_CASE("the wide and deep example reaches 0.95 of the planted optimum", "[cluster][program]") {
  const TempFolder folder;
  const RunResult made = RunProgram("../tests/programs/make_log", {folder / "log"});
  REQUIRE(made.code == 0);
  Cluster cluster{{.ps = 2, .workers = 2}};

  const RunResult run = cluster.Muster({"submit", "--strategy", "parameter_server", "--wait", "--",
                                        MUSTER_TEST_PROGRAMS "/ctr", folder / "log"},
                                       std::chrono::seconds(300));

  const std::string printed = cluster.Output(IdIn(run));
  CAPTURE(made.out, run.err, printed, cluster.up_log());
  CHECK(run.code == 0);
  CHECK(printed.find(" on 60000 rows, of ") != std::string::npos);
  // Its executors keep what they find out about the data where their daemons say.
  const std::filesystem::path cache = cluster.state() + "/worker-0/cache/data";
  CHECK(std::filesystem::exists(cache));
  CHECK_FALSE(std::filesystem::is_empty(cache));
}

}  // namespace
}  // namespace muster::testing
