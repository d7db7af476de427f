// evaluator:0 beside a model job: it evaluates each checkpoint, also when it is killed, and holds
// nothing up.
#include <csignal>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

// A sum job of 200 steps, whose held-out examples are its own.
SumJob Evaluated(const TempFolder& folder, int work) {
  std::string columns;
  for (int i = 0; i < 8; ++i) columns += "        x" + std::to_string(i) + ": {dtype: float32}\n";
  return SumJob(folder, 2000, 10, 1, work,
                "checkpoint: {every_steps: 40, keep: 10}\n"
                "evaluation:\n"
                "  evaluator: true\n"
                "  batch_size: 500\n"
                "  data:\n"
                "    csv:\n"
                "      files: sums.csv\n"
                "      columns:\n" +
                    columns);
}

bool AllHaveFigures(const v1::Job& job) {
  for (const v1::CheckpointInfo& info : job.checkpoints()) {
    if (!info.has_evaluation() || info.evaluation().step() != info.step() ||
        info.evaluation().examples() != 2000) {
      return false;
    }
  }
  return true;
}

TEST_CASE("an evaluator that is killed comes back and misses no checkpoint", "[cluster]") {
  const TempFolder folder;
  const SumJob sums = Evaluated(folder, 800);
  const Cluster cluster({.ps = 2, .workers = 2, .more = {"--evaluator"}});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 20, seconds(60)));
  for (int kill = 0; kill < 3; ++kill) {
    REQUIRE(Eventually(seconds(30), [&] { return cluster.PidOf("evaluator:0") != 0; }));
    (void)cluster.Kill("evaluator:0", SIGKILL);
  }
  CHECK(cluster.Wait(id, seconds(120)) == 0);

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(job.checkpoints_size() == 5);
  CHECK(AllHaveFigures(job));
  CHECK(job.evaluation().step() == 200);
  CHECK(CountEvents(job, "EVALUATED") == 5);
  CHECK(FindEvent(job, "EVALUATOR_BACK") != nullptr);
  CHECK(FindEvent(job, "WORKER_LOST") == nullptr);
  CHECK(job.view() == 1);
  const RunResult described = cluster.Muster({"describe", id});
  CHECK(described.out.find("EVALUATION") != std::string::npos);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
}

TEST_CASE("a stopped evaluator holds up nothing but the job's end", "[cluster]") {
  const TempFolder folder;
  const SumJob sums = Evaluated(folder, 0);
  const Cluster cluster({.ps = 2, .workers = 1, .more = {"--evaluator"}});
  const int evaluator = cluster.PidOf("evaluator:0");
  REQUIRE(evaluator > 0);
  REQUIRE(::kill(evaluator, SIGSTOP) == 0);
  const std::string id = cluster.Submit(sums.file);
  const bool trained =
      Eventually(seconds(60), [&] { return cluster.Describe(id).reason() == "EVALUATING"; });
  {
    const v1::Job job = cluster.Describe(id);
    CAPTURE(Story(job));
    CHECK(trained);
    CHECK(job.progress().step() == 200);
    CHECK(job.checkpoints_size() == 5);
  }
  REQUIRE(::kill(evaluator, SIGCONT) == 0);
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(AllHaveFigures(job));
}

}  // namespace
}  // namespace muster::testing
