// Jobs under the strategies of one machine, on a cluster without parameter servers.
#include <csignal>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

std::string WriteFashion(const TempFolder& folder, const std::string& name, std::uint64_t steps,
                         const std::string& strategy) {
  return folder.Write(name,
                      FashionJobUnder(strategy, steps, "checkpoint: {every_steps: 50, keep: 2}\n"));
}

std::uint32_t ExecutorOf(const v1::Job& job) {
  for (const v1::TaskState& task : job.tasks()) {
    if (task.executor_pid() != 0) return task.executor_pid();
  }
  return 0;
}

std::map<std::string, std::vector<float>> Export(const Cluster& cluster, const TempFolder& folder,
                                                 const std::string& id) {
  REQUIRE(cluster.Muster({"checkpoints", "verify", id}).code == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "m"}).code == 0);
  return ReadSafetensors(folder / "m");
}

TEST_CASE(
    "a mirrored job trains without parameter servers; kill -9 of its executor changes nothing",
    "[cluster]") {
  Cluster cluster({.ps = 0, .workers = 1});
  const TempFolder folder;
  // Some ten seconds, so that the job still runs when the last of three has died.
  const std::string file =
      WriteFashion(folder, "fashion.yaml", 3000, "kind: mirrored\n  devices: 2");

  const RunResult run = cluster.Muster({"submit", "-f", file, "--follow"});
  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  CHECK(run.err.find("step 3000/3000") != std::string::npos);
  const std::string id = IdIn(run);
  const v1::Job done = cluster.Describe(id);
  CHECK(done.state() == v1::JOB_STATE_SUCCEEDED);
  CHECK(done.evaluation().examples() == 10'000);
  CHECK(done.evaluation().accuracy() > 0.75);
  CHECK(done.checkpoints_size() == 2);
  const auto uninterrupted = Export(cluster, folder, id);
  REQUIRE(uninterrupted.size() == 4);

  // The same again; its executor, its worker and its coordinator die on the way.
  const std::string again = cluster.Submit(file, "again");
  for (const std::string victim : {"executor", "worker:0", "coordinator"}) {
    CAPTURE(victim);
    const v1::Job before = cluster.Describe(again);
    REQUIRE(cluster.WaitForStep(again, before.progress().step() + 60, seconds(60)));
    if (victim == "executor") {
      REQUIRE(kill(static_cast<pid_t>(ExecutorOf(cluster.Describe(again))), SIGKILL) == 0);
    } else {
      REQUIRE(cluster.Kill(victim, SIGKILL));
    }
    // Until it is back there is nobody to ask.
    REQUIRE(Eventually(
        seconds(30), [&] { return cluster.Muster({"describe", again, "-o", "json"}).code == 0; }));
    // A coordinator finds the variables where they were.
    REQUIRE(Eventually(seconds(30), [&] {
      const v1::Job job = cluster.Describe(again);
      const bool on = victim == "coordinator" ? FindEvent(job, "VIEW_ADOPTED") != nullptr
                                              : job.view() > before.view();
      return on && job.state() == v1::JOB_STATE_RUNNING;
    }));
    if (victim == "coordinator") CHECK(cluster.Describe(again).view() == before.view());
  }
  const int code = cluster.Wait(again, seconds(90));
  const v1::Job job = cluster.Describe(again);
  CAPTURE(Story(job));
  REQUIRE(code == 0);
  const v1::Event* lost = FindEvent(job, "EXECUTOR_LOST");
  REQUIRE(lost != nullptr);
  CHECK(lost->fields().at("how").find("SIGKILL") != std::string::npos);
  CHECK(FindEvent(job, "WORKER_LOST") != nullptr);
  CHECK(FindEvent(job, "COORDINATOR_RESTARTED") != nullptr);
  CHECK(Field(*FindEvent(job, "VIEW_ADOPTED"), "steps_lost") == 0);
  REQUIRE(FindEvent(job, "JOB_RESTORED") != nullptr);
  CHECK(Field(*FindEvent(job, "JOB_RESTORED"), "step") % 50 == 0);
  CHECK(Field(*FindEvent(job, "JOB_RESTORED"), "step") > 0);
  CHECK((Export(cluster, folder, again) == uninterrupted));
}

TEST_CASE("a job that is stopped goes on, and every update counts once", "[cluster]") {
  Cluster cluster({.ps = 0, .workers = 2});
  const TempFolder folder;
  const SumJob sums(folder, 1000, 10, 6, 1000, "checkpoint: {every_steps: 100}\n");
  ReplaceInFile(sums.file, "kind: parameter_server\n  partitioner: {kind: fixed, num_shards: 2}",
                "kind: one_device");
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 120, seconds(60)));
  REQUIRE(cluster.Muster({"stop", id}).code == 0);
  REQUIRE(cluster.Wait(id, seconds(60)) == 8);
  const std::uint64_t stopped = cluster.Describe(id).progress().step();
  REQUIRE(cluster.Submit(sums.file) == id);
  REQUIRE(cluster.WaitForStep(id, stopped + 20, seconds(60)));
  // Its worker goes for good: the other one takes over.
  const int worker = cluster.PidOf("worker:0");
  REQUIRE(kill(worker, SIGSTOP) == 0);
  CHECK(Eventually(seconds(60),
                   [&] { return FindEvent(cluster.Describe(id), "WORKER_LOST") != nullptr; }));
  sums.Hurry();
  const int code = cluster.Wait(id, seconds(120));
  CHECK(kill(worker, SIGCONT) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  REQUIRE(code == 0);
  CHECK(job.progress().step() == sums.steps);
  CHECK(FindEvent(job, "WORKER_LOST") != nullptr);
  CHECK((Export(cluster, folder, id).at("w") == sums.expected));
}

TEST_CASE("a partitioner under mirrored is refused with its place in the file", "[cluster]") {
  Cluster cluster({.ps = 0, .workers = 1});
  const TempFolder folder;
  const std::string file =
      WriteFashion(folder, "fashion.yaml", 300, "kind: mirrored\n  partitioner: {kind: min_size}");
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--dry-run"}, {}}) {
    std::vector<std::string> arguments{"submit", "-f", file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const RunResult run = cluster.Muster(arguments);
    CAPTURE(run.err);
    CHECK(run.code == 2);
    CHECK(run.err.find("fashion.yaml:") != std::string::npos);
    CHECK(run.err.find("strategy.partitioner: mirrored keeps every variable whole on each device; "
                       "remove it, or use kind parameter_server") != std::string::npos);
  }
  const RunResult fine = cluster.Muster(
      {"submit", "-f",
       WriteFashion(folder, "fine.yaml", 300, "kind: central_storage\n  devices: 2"), "--dry-run"});
  CAPTURE(fine.err);
  CHECK(fine.code == 0);
  CHECK(fine.err.find("w1: whole") != std::string::npos);
}

TEST_CASE("embeddings learn on two mirrored devices", "[cluster]") {
  const TempFolder folder;
  const RunResult made = RunProgram("muster-make-clicks", {"--out", folder / "clicks"});
  REQUIRE(made.code == 0);
  const double optimum = nlohmann::json::parse(made.out)["optimum_auc"];
  const std::string file = folder / "clicks.yaml";
  std::filesystem::copy_file(std::string(MUSTER_SOURCE) + "/examples/clicks.yaml", file);
  ReplaceInFile(file,
                "kind: parameter_server\n  partitioner: {kind: min_size, min_shard_bytes: 65536}",
                "kind: mirrored\n  devices: 2");
  Cluster cluster({.ps = 0, .workers = 1});
  const RunResult run = cluster.Muster({"submit", "-f", file, "--follow"}, seconds(240));
  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  const v1::Job job = cluster.Describe(IdIn(run));
  CAPTURE(optimum, job.evaluation().auc());
  CHECK(job.evaluation().examples() == 20'000);
  CHECK(job.evaluation().auc() >= 0.95 * optimum);
}

std::string CnnExample() {
  return ReadAll(std::string(MUSTER_SOURCE) + "/examples/fashion_cnn.yaml");
}

TEST_CASE("the example with convolutions reaches 0.91 on two mirrored devices", "[cluster]") {
  const TempFolder folder;
  Cluster cluster({.ps = 0, .workers = 1});

  const RunResult run = cluster.Muster(
      {"submit", "-f", folder.Write("cnn.yaml", CnnExample()), "--follow"}, seconds(300));

  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  const v1::Job job = cluster.Describe(IdIn(run));
  CHECK(FindEvent(job, "EXECUTOR_LOST") == nullptr);
  CHECK(job.evaluation().examples() == 10'000);
  CHECK(job.evaluation().accuracy() >= 0.91);
}

TEST_CASE("the example with convolutions learns on one device and on parameter servers, too",
          "[cluster]") {
  const TempFolder folder;
  Cluster cluster({.ps = 2, .workers = 2});
  for (const std::string kind : {"one_device", "parameter_server"}) {
    CAPTURE(kind);
    const std::string file = folder.Write(kind + ".yaml", CnnExample());
    ReplaceInFile(file, "kind: mirrored\n  devices: 2", "kind: " + kind);
    ReplaceInFile(file, "epochs: 5", "steps: 150");

    const RunResult run = cluster.Muster({"submit", "-f", file, "--name", kind, "--follow"});

    CAPTURE(run.err);
    REQUIRE(run.code == 0);
    const v1::Job job = cluster.Describe(IdIn(run));
    CHECK(FindEvent(job, "EXECUTOR_LOST") == nullptr);
    // A net that knows nothing has 0.1, and a loss of 2.3.
    CHECK(job.evaluation().accuracy() > 0.7);
    CHECK(job.evaluation().loss() < 0.9);
  }
}

}  // namespace
}  // namespace muster::testing
