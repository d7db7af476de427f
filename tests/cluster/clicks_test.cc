// examples/clicks.yaml: embeddings over two parameter servers learn what was planted.
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

TEST_CASE("the click example reaches 0.95 of the planted optimum", "[cluster]") {
  const TempFolder folder;
  const RunResult made = RunProgram("muster-make-clicks", {"--out", folder / "clicks"});
  REQUIRE(made.code == 0);
  const double optimum = nlohmann::json::parse(made.out)["optimum_auc"];
  std::filesystem::copy_file(std::string(MUSTER_SOURCE) + "/examples/clicks.yaml",
                             folder / "clicks.yaml");
  Cluster cluster;

  const RunResult run = cluster.Muster({"submit", "-f", folder / "clicks.yaml", "--follow"},
                                       std::chrono::seconds(240));

  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  const v1::Job job = cluster.Describe(IdIn(run));
  CAPTURE(optimum, job.evaluation().auc());
  CHECK(job.evaluation().examples() == 20'000);
  CHECK(job.evaluation().auc() >= 0.95 * optimum);
}

}  // namespace
}  // namespace muster::testing
