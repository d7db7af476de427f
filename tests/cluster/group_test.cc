// Jobs whose steps several workers make together: what becomes of the steps when workers are
// killed, stopped, or come back.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fmt/core.h>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"
#include "tests/support/lateness.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

// From the loss of a worker on (docs/formats/job-spec.md); one that stands still is lost when its
// lease ends.
constexpr std::int64_t kGoOnMs = 5'000;
constexpr std::int64_t kLeaseMs = 4'000;

std::string WriteFashion(const TempFolder& folder, const std::string& name, std::uint64_t steps,
                         const std::string& strategy) {
  return folder.Write(name, FashionJobUnder(strategy, steps, "checkpoint: {every_steps: 500}\n"));
}

std::map<std::string, std::vector<float>> Export(const Cluster& cluster, const TempFolder& folder,
                                                 const std::string& id) {
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "m"}).code == 0);
  return ReadSafetensors(folder / "m");
}

// Somebody writes a file of a checkpoint.
bool Unfinished(const std::string& checkpoints) {
  std::error_code none;
  for (std::filesystem::recursive_directory_iterator at(checkpoints, none), end; !none && at != end;
       at.increment(none)) {
    if (at->path().extension() == ".tmp") return true;
  }
  return false;
}

const v1::Event* LastGroup(const v1::Job& job) {
  const v1::Event* last = nullptr;
  for (const v1::Event& event : job.events()) {
    if (event.reason() == "GROUP_FORMED") last = &event;
  }
  return last;
}

// When the first group has formed after that time; -1: none has.
std::int64_t FormedAfter(const v1::Job& job, std::int64_t time_ms) {
  for (const v1::Event& event : job.events()) {
    if (event.reason() == "GROUP_FORMED" && event.time_ms() > time_ms) return event.time_ms();
  }
  return -1;
}

bool MakesStepsTogether(const Cluster& cluster, const std::string& id, const std::string& workers,
                        int groups) {
  return Eventually(seconds(60), [&] {
    const v1::Job job = cluster.Describe(id);
    const v1::Event* const last = LastGroup(job);
    return CountEvents(job, "GROUP_FORMED") > groups && last != nullptr &&
           last->fields().at("workers") == workers;
  });
}

TEST_CASE("two workers make the steps of the example together", "[cluster]") {
  Cluster cluster({.ps = 0, .workers = 2});
  const TempFolder folder;
  std::string text = ReadAll(std::string(MUSTER_SOURCE) + "/examples/fashion_multi_worker.yaml");
  const std::string file = folder.Write("job.yaml", text);
  ReplaceInFile(file, "epochs: 5", "steps: 1000");
  const RunResult run = cluster.Muster({"submit", "-f", file, "--follow"});
  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  const v1::Job job = cluster.Describe(IdIn(run));
  CAPTURE(Story(job));
  CHECK(job.progress().step() == 1000);
  CHECK(job.evaluation().examples() == 10'000);
  CHECK(job.evaluation().accuracy() > 0.75);
  CHECK(job.checkpoints_size() == 2);
  REQUIRE(LastGroup(job) != nullptr);
  CHECK(LastGroup(job)->fields().at("workers") == "2");
  CHECK(LastGroup(job)->fields().at("leader") == "worker:0");
}

TEST_CASE(
    "workers and executors that are killed or stopped cost no step, those that come back join, and "
    "the bits are those of one worker",
    "[cluster]") {
  Cluster cluster({.ps = 0, .workers = 3});
  const TempFolder folder;
  constexpr std::uint64_t kSteps = 1500;
  const Work work(folder, 0);
  const auto write = [&](const std::string& name, const std::string& strategy) {
    const std::string file = WriteFashion(folder, name, kSteps, strategy);
    const std::string end = "        return torch.addmm(self.b2, hidden, self.w2)";
    ReplaceInFile(file, end, work.Lines("image") + end + " + slow");
    return file;
  };
  const std::string alone =
      cluster.Submit(write("alone.yaml", "kind: one_device\n  deterministic: true"), "one");
  REQUIRE(cluster.Wait(alone, seconds(200)) == 0);
  const auto expected = Export(cluster, folder, alone);
  REQUIRE(expected.size() == 4);

  // Until all of them had their turn.
  work.Set(1'000);
  const std::string id =
      cluster.Submit(write("together.yaml",
                           "kind: multi_worker_mirrored\n  workers: 1\n  max_workers: 3\n"
                           "  deterministic: true"),
                     "together");
  for (const std::string victim : {"member", "leader", "worker", "stopped"}) {
    CAPTURE(victim);
    REQUIRE(MakesStepsTogether(cluster, id, "3", -1));
    const v1::Job before = cluster.Describe(id);
    CAPTURE(Story(before));
    REQUIRE(before.state() == v1::JOB_STATE_RUNNING);
    const int groups = CountEvents(before, "GROUP_FORMED");
    const std::string leader = LastGroup(before)->fields().at("leader");
    const auto led = static_cast<std::uint32_t>(leader.back() - '0');
    const std::uint32_t other = (led + 1) % 3;
    REQUIRE(cluster.WaitForStep(id, before.progress().step() + 30, seconds(60)));
    const Lateness lateness;
    const std::int64_t lost = NowMs();
    if (victim == "member") {
      REQUIRE(kill(ExecutorPid(before, other), SIGKILL) == 0);
    } else if (victim == "leader") {
      REQUIRE(kill(ExecutorPid(before, led), SIGKILL) == 0);
    } else if (victim == "worker") {
      REQUIRE(cluster.Kill(fmt::format("worker:{}", other), SIGKILL));
    } else {
      const pid_t executor = ExecutorPid(before, led);
      const int daemon = cluster.PidOf(leader);
      REQUIRE(kill(daemon, SIGSTOP) == 0);
      REQUIRE(kill(executor, SIGSTOP) == 0);
      const bool went_on = MakesStepsTogether(cluster, id, "2", groups);
      (void)kill(executor, SIGCONT);
      (void)kill(daemon, SIGCONT);
      REQUIRE(went_on);
    }
    // Without it, then with it again; where it is back at once there may be one group alone.
    REQUIRE(MakesStepsTogether(cluster, id, "3", groups));
    const v1::Job after = cluster.Describe(id);
    const std::int64_t formed = FormedAfter(after, lost);
    CAPTURE(Story(after), formed - lost, lateness.worst_ms());
    CHECK(formed > 0);
    CHECK(formed - lost - 4 * lateness.worst_ms() < kGoOnMs + (victim == "stopped" ? kLeaseMs : 0));
  }
  const std::uint64_t step = cluster.Describe(id).progress().step();
  REQUIRE(cluster.WaitForStep(id, step + 30, seconds(60)));
  work.Set(0);
  const int code = cluster.Wait(id, seconds(200));
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  REQUIRE(code == 0);
  CHECK(job.view() == 1);
  CHECK(FindEvent(job, "JOB_RESTORED") == nullptr);
  CHECK(FindEvent(job, "EXECUTOR_LOST") != nullptr);
  CHECK(FindEvent(job, "WORKER_LOST") != nullptr);
  CHECK((Export(cluster, folder, id) == expected));
}

TEST_CASE(
    "a leader or a member that is killed while the leader writes a checkpoint leaves no half of "
    "one, and the job goes back to it when all are killed",
    "[cluster]") {
  const TempFolder folder;
  constexpr std::uint64_t kSteps = 3000;
  const std::string checkpoints = folder / "checkpoints";
  const auto fail = [&](const std::string& lines) {
    const std::string staged = folder.Write("faults.new", lines);
    REQUIRE(std::rename(staged.c_str(), (folder / "faults").c_str()) == 0);
  };
  fail("");
  Cluster cluster({.ps = 0,
                   .workers = 3,
                   .environment = {{"LD_PRELOAD", MUSTER_FAILING_DISK_LIBRARY},
                                   {"MUSTER_FAILING_DISK", folder / "faults"}}});
  const auto write = [&](const std::string& name, const std::string& strategy,
                         const std::string& directory) {
    return folder.Write(
        name, FashionJobUnder(strategy, kSteps,
                              "checkpoint: {every_steps: 300, directory: " + directory + "}\n"));
  };
  const std::string alone = cluster.Submit(
      write("alone.yaml", "kind: one_device\n  deterministic: true", folder / "of-one"), "one");
  REQUIRE(cluster.Wait(alone, seconds(200)) == 0);
  const auto expected = Export(cluster, folder, alone);

  const std::string id = cluster.Submit(write("together.yaml",
                                              "kind: multi_worker_mirrored\n  workers: 1\n"
                                              "  max_workers: 3\n  deterministic: true",
                                              checkpoints),
                                        "together");
  for (const std::string victim : {"leader", "member"}) {
    CAPTURE(victim);
    REQUIRE(MakesStepsTogether(cluster, id, "3", -1));
    const v1::Job before = cluster.Describe(id);
    CAPTURE(Story(before));
    const int groups = CountEvents(before, "GROUP_FORMED");
    const auto led =
        static_cast<std::uint32_t>(LastGroup(before)->fields().at("leader").back() - '0');
    const int leader = ExecutorPid(before, led);
    const int saved = CountEvents(before, "CHECKPOINT_SAVED");
    REQUIRE(Eventually(seconds(60), [&] {
      return CountEvents(cluster.Describe(id), "CHECKPOINT_SAVED") > saved;
    }));
    fail(fmt::format("{} fdatasync hang {}\n", leader, checkpoints));
    REQUIRE(Eventually(seconds(60), [&] { return Unfinished(checkpoints); }));

    REQUIRE(kill(victim == "leader" ? leader : ExecutorPid(before, (led + 1) % 3), SIGKILL) == 0);

    CHECK(cluster.Muster({"checkpoints", "verify", id}).code == 0);
    fail("");
    REQUIRE(MakesStepsTogether(cluster, id, "3", groups));
  }
  // All that have the variables.
  const v1::Job before = cluster.Describe(id);
  REQUIRE(before.state() == v1::JOB_STATE_RUNNING);
  for (std::uint32_t worker = 0; worker < 3; ++worker) {
    REQUIRE(kill(ExecutorPid(before, worker), SIGKILL) == 0);
  }
  const int code = cluster.Wait(id, seconds(200));
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  REQUIRE(code == 0);
  CHECK(job.view() == 2);
  CHECK(FindEvent(job, "JOB_RESTORED") != nullptr);
  CHECK(FindEvent(job, "CHECKPOINT_REFUSED") == nullptr);
  CHECK((Export(cluster, folder, id) == expected));
}

TEST_CASE("a new coordinator goes on with the steps that workers make together", "[cluster]") {
  Cluster cluster({.ps = 0, .workers = 2});
  const TempFolder folder;
  const std::string id = cluster.Submit(
      WriteFashion(folder, "job.yaml", 1500, "kind: multi_worker_mirrored\n  workers: 2"));
  REQUIRE(cluster.WaitForStep(id, 100, seconds(60)));
  REQUIRE(cluster.Kill("coordinator", SIGKILL));
  REQUIRE(Eventually(seconds(60), [&] {
    return cluster.Muster({"describe", id, "-o", "json"}).code == 0 &&
           FindEvent(cluster.Describe(id), "VIEW_ADOPTED") != nullptr;
  }));
  const int code = cluster.Wait(id, seconds(120));
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  REQUIRE(code == 0);
  CHECK(job.view() == 1);
  CHECK(Field(*FindEvent(job, "VIEW_ADOPTED"), "steps_lost") == 0);
  CHECK(job.progress().step() == 1500);
}

TEST_CASE("a job on emulated cores trains in one worker, along their torus", "[cluster]") {
  Cluster cluster({.ps = 0, .workers = 1});
  const TempFolder folder;
  const std::string file = WriteFashion(folder, "tpu.yaml", 300, "kind: tpu\n  topology: 2x2x1x2");
  const RunResult dry = cluster.Muster({"submit", "-f", file, "--dry-run"});
  CAPTURE(dry.err);
  CHECK(dry.code == 0);
  const RunResult run = cluster.Muster({"submit", "-f", file, "--follow"});
  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  const v1::Job job = cluster.Describe(IdIn(run));
  CHECK(job.evaluation().accuracy() > 0.7);
  CHECK(FindEvent(job, "JOB_RUNNING")->message().find("8 emulated cores of worker:0") !=
        std::string::npos);
  const std::string bad = WriteFashion(folder, "bad.yaml", 300, "kind: tpu\n  topology: 2x2");
  const RunResult refused = cluster.Muster({"submit", "-f", bad});
  CHECK(refused.code == 2);
  CHECK(refused.err.find("bad.yaml:") != std::string::npos);
  CHECK(refused.err.find("strategy.topology: chips along x, y and z") != std::string::npos);
}

}  // namespace
}  // namespace muster::testing
