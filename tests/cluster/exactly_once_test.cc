// The proof by integers: whoever has a part in a job is killed -9 or stopped, again and again at
// random moments, and w still ends as its start minus the exact sum of all samples, times the
// epochs.
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct ExactlyOnce {
  ExactlyOnce() {
    const char* given = std::getenv("MUSTER_TEST_SEED");
    seed = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device()();
    random.seed(seed);
  }

  milliseconds Between(unsigned least, unsigned most) {
    return milliseconds(least + random() % (most - least));
  }

  // One fault for each victim, in turn and at random moments, until all had theirs or the job
  // ended.
  int Hurt(const Cluster& cluster, const std::string& id, const std::vector<std::string>& victims) {
    int hurt = 0;
    for (const std::string& victim : victims) {
      std::this_thread::sleep_for(Between(200, 800));
      const int pid = Await(cluster, victim);
      if (cluster.Describe(id).ended_ms() != 0) break;
      if (pid <= 1) continue;
      const bool stop = random() % 3 == 0;
      if (::kill(pid, stop ? SIGSTOP : SIGKILL) != 0) continue;
      ++hurt;
      if (!stop) continue;
      std::this_thread::sleep_for(Between(100, 7'000));
      (void)::kill(pid, SIGCONT);
    }
    return hurt;
  }

  void CheckEnd(Cluster& cluster, const std::string& id, const SumJob& sums) {
    // Whoever was hurt last has a part in the job again, which has nothing more to wait for.
    const std::uint64_t step = cluster.Describe(id).progress().step();
    CHECK(cluster.WaitForStep(id, step + 200, seconds(60)));
    sums.Hurry();
    const int code = cluster.Wait(id, seconds(240));
    const v1::Job job = cluster.Describe(id);
    CAPTURE(seed, cluster.up_log(), Story(job));
    REQUIRE(code == 0);
    CHECK(job.progress().step() == sums.steps);
    for (const v1::Event& event : job.events()) {
      if (event.reason() != "VIEW_ADOPTED") continue;
      CHECK(Field(event, "steps_lost") == 0);
      CHECK(event.message().find(": 0 steps lost, ") != std::string::npos);
      ++adopted;
    }
    view_of_end = job.view();
    REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
    CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
    CHECK(cluster.Drain() == 0);
    CHECK(ProcessesOf(cluster.state()).empty());
  }

  // Its process, as soon as there is one.
  static int Await(const Cluster& cluster, const std::string& victim) {
    int pid = 0;
    (void)Eventually(seconds(20), [&] {
      if (cluster.Muster({"status"}).code != 0) return false;  // the coordinator is on its way
      pid = cluster.PidOf(victim);
      return pid > 1;
    });
    return pid;
  }

  unsigned seed = 0;
  // What CheckEnd() has seen.
  std::uint64_t view_of_end = 0;
  int adopted = 0;
  std::mt19937 random;
  TempFolder folder;
};

TEST_CASE_METHOD(ExactlyOnce, "every update is applied exactly once, whoever is killed or stopped",
                 "[cluster]") {
  const SumJob sums(folder, 2000, 10, 30, 400, "checkpoint: {every_steps: 250}\n");
  Cluster cluster({.ps = 2, .workers = 3, .environment = {{"MUSTER_DRIVER_TIMEOUT", "5s"}}});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 100, seconds(60)));

  const int hurt = Hurt(cluster, id,
                        {"worker:0", "trainer", "worker:1", "trainer", "coordinator", "worker:2",
                         "trainer", "ps:0", "trainer", "coordinator", "trainer", "trainer"});
  CAPTURE(seed, hurt);
  CHECK(hurt >= 3);
  CheckEnd(cluster, id, sums);
}

TEST_CASE_METHOD(ExactlyOnce,
                 "without periodic checkpoints a killed driver or worker loses nothing",
                 "[cluster]") {
  const SumJob sums(folder, 2000, 10, 30, 400);
  Cluster cluster({.ps = 2, .workers = 3, .environment = {{"MUSTER_DRIVER_TIMEOUT", "5s"}}});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 100, seconds(60)));

  const int hurt = Hurt(
      cluster, id,
      {"trainer", "worker:0", "trainer", "trainer", "worker:1", "trainer", "worker:2", "trainer"});
  CAPTURE(seed, hurt);
  CHECK(hurt >= 3);
  CHECK(cluster.Describe(id).view() == 1);
  CheckEnd(cluster, id, sums);
}

TEST_CASE_METHOD(
    ExactlyOnce,
    "without periodic checkpoints a killed coordinator costs no step, whoever dies with it",
    "[cluster]") {
  const SumJob sums(folder, 2000, 10, 40, 400);
  Cluster cluster({.ps = 2, .workers = 3, .environment = {{"MUSTER_DRIVER_TIMEOUT", "5s"}}});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 100, seconds(60)));
  REQUIRE(cluster.Kill("coordinator", SIGKILL));

  const int hurt = Hurt(cluster, id,
                        {"worker:0", "coordinator", "trainer", "worker:1", "coordinator", "trainer",
                         "coordinator", "worker:2", "coordinator", "trainer"});
  CAPTURE(seed, hurt);
  CHECK(hurt >= 3);
  CheckEnd(cluster, id, sums);
  CHECK(view_of_end == 1);
  CHECK(adopted >= 1);
}

TEST_CASE_METHOD(ExactlyOnce, "a driver that is killed while checkpoints are written loses nothing",
                 "[cluster]") {
  // More time goes into checkpoints than into steps, and the job is long enough for several kills
  // on a machine of any speed.
  const SumJob sums(folder, 2000, 10, 20, 50, "checkpoint: {every_steps: 4}\n");
  Cluster cluster({.ps = 2, .workers = 2});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 20, seconds(60)));

  for (int kills = 0; kills < 6; ++kills) {
    std::this_thread::sleep_for(Between(100, 500));
    if (const int pid = Await(cluster, "trainer"); pid > 1) (void)::kill(pid, SIGKILL);
    const std::uint64_t step = cluster.Describe(id).progress().step();
    REQUIRE(cluster.WaitForStep(id, step + 8, seconds(60)));
    if (cluster.Describe(id).ended_ms() != 0) break;
  }
  const v1::Job job = cluster.Describe(id);
  CAPTURE(seed, Story(job));
  CHECK(CountEvents(job, "DRIVER_LOST") >= 2);
  CHECK(job.view() == 1);
  CheckEnd(cluster, id, sums);
}

}  // namespace
}  // namespace muster::testing
