// A small job from submit to export.
#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

TEST_CASE("the demo's model trains, is evaluated whole and exported", "[cluster]") {
  Cluster cluster;
  const TempFolder folder;
  const std::string file = folder.Write("fashion.yaml", FashionJob(300));

  const RunResult run = cluster.Muster({"submit", "-f", file, "--follow"});

  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  const std::string id = IdIn(run);
  CHECK(run.out == id + "\n");
  CHECK(run.err.find("step 300/300") != std::string::npos);
  const v1::Job job = cluster.Describe(id);
  CHECK(job.state() == v1::JOB_STATE_SUCCEEDED);
  CHECK(job.progress().step() == 300);
  CHECK(job.evaluation().examples() == 10'000);
  CHECK(job.evaluation().accuracy() > 0.75);

  // The same name and job is the same job; what was edited since its end is a new one.
  CHECK(cluster.Submit(file) == id);
  const std::string other = folder.Write("other.yaml", FashionJob(301));
  CHECK(cluster.Submit(other) == "fashion-2");
  CHECK(cluster.Submit(other, "other") == "other-3");

  CHECK(cluster.Muster({"checkpoints", "verify", id}).code == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "m.safetensors"}).code == 0);
  const auto tensors = ReadSafetensors(folder / "m.safetensors");
  REQUIRE(tensors.size() == 4);
  CHECK(tensors.at("w1").size() == 784 * 256);
  CHECK(tensors.at("b2").size() == 10);
  CHECK(cluster.Muster({"logs", id}).code == 0);
}

TEST_CASE("a job that is stopped ends with 8, a wait that is too short with 7", "[cluster]") {
  Cluster cluster({.ps = 1, .workers = 1});
  const TempFolder folder;
  const SumJob sums(folder, 1000, 10, 1000, 40);
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 50, seconds(60)));

  CHECK(cluster.Muster({"wait", id, "--timeout", "100ms"}).code == 7);
  // Another job under its name is refused while it runs.
  ReplaceInFile(sums.file, "epochs: 1000", "epochs: 1001");
  CHECK(cluster.Muster({"submit", "-f", sums.file}).code == 4);
  CHECK(cluster.Muster({"stop", id}).code == 0);
  CHECK(cluster.Wait(id, seconds(60)) == 8);
  // What its executor did in its last second is counted, too.
  const std::uint64_t steps = cluster.Describe(id).progress().step();
  CHECK(Eventually(seconds(10), [&] {
    std::uint64_t done = 0;
    const v1::ClusterStatus status = cluster.Status();
    for (const v1::TaskState& task : status.tasks()) done += task.closures_done();
    return done >= steps;
  }));
  CHECK(cluster.Muster({"stop", id}).code == 0);
  CHECK(cluster.Muster({"checkpoints", "verify", id}).code == 0);
}

}  // namespace
}  // namespace muster::testing
