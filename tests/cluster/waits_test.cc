// Who waits for whom in a collective call, as people see it: one member of each kind of job stands
// still for less than it takes to lose it (4 s), and goes on; and who has not come yet.
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const std::string kPrograms = MUSTER_TEST_PROGRAMS "/";

// In calls, or while the group forms.
std::vector<v1::CollectiveWait> WaitsOf(const v1::Job& job, bool forming = false) {
  std::vector<v1::CollectiveWait> waits;
  for (const v1::TaskState& task : job.tasks()) {
    for (const v1::CollectiveWait& wait : task.waits()) {
      if ((wait.operation() == 0) == forming) waits.push_back(wait);
    }
  }
  return waits;
}

// The job in which `stopped`, a process of the place worker:1, stands still: the other one is shown
// to wait for it, and no more when it goes on.
void CheckShown(const Cluster& cluster, const std::string& id, pid_t stopped) {
  std::vector<v1::CollectiveWait> waits;
  RunResult described;
  const bool shown = Eventually(seconds(20), [&] {
    waits = WaitsOf(cluster.Describe(id));
    if (waits.empty()) return false;
    described = cluster.Muster({"describe", id});
    return true;
  });
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log(), described.out);
  REQUIRE(shown);
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].job_id() == id);
  CHECK(waits[0].task().type() == "worker");
  CHECK(waits[0].task().index() == 0);
  CHECK(waits[0].operation() > 0);
  CHECK(waits[0].awaited().starts_with("worker:1"));
  CHECK_FALSE(waits[0].call().empty());
  CHECK(waits[0].lasts_ms() >= 1'000);
  CHECK(waits[0].lasts_ms() < waits[0].limit_ms());
  CHECK(described.out.find("WAITS     FOR") != std::string::npos);
  CHECK(Eventually(seconds(20), [&] { return WaitsOf(cluster.Describe(id)).empty(); }));
}

TEST_CASE("who waits for whom is shown before a deadline ends it, and goes when the call ends",
          "[cluster]") {
  Cluster cluster({.ps = 0, .workers = 2});
  const auto process = [&](const std::string& id) {
    int pid = 0;
    (void)Eventually(seconds(60), [&] {
      const v1::Job job = cluster.Describe(id);
      if (job.launch().tasks_size() == 2) pid = static_cast<int>(job.launch().tasks(1).pid());
      return pid != 0;
    });
    return pid;
  };
  const auto submit = [&](const std::string& workers, const std::vector<std::string>& command) {
    std::vector<std::string> line{"submit", "--strategy", "multi_worker_mirrored", "--workers",
                                  workers,  "--env",      "OMP_NUM_THREADS=1",     "--"};
    line.insert(line.end(), command.begin(), command.end());
    return IdIn(cluster.Muster(line));
  };

  SECTION("a launched program") {
    const std::string id = submit("2", {kPrograms + "multi_worker", "20", "stop", "worker:1", "7"});
    CheckShown(cluster, id, process(id));
    CHECK(cluster.Wait(id, seconds(60)) == 0);
  }
  SECTION("a launched program of which one process has not come yet") {
    const std::string id = submit(
        "2",
        {"sh", "-c", "[ \"$RANK\" = 1 ] && kill -STOP $$; exec " + kPrograms + "multi_worker 20"});
    const pid_t late = process(id);
    std::vector<v1::CollectiveWait> waits;
    const bool shown = Eventually(seconds(60), [&] {
      waits = WaitsOf(cluster.Describe(id), /*forming=*/true);
      return !waits.empty();
    });
    const RunResult described = cluster.Muster({"describe", id});
    REQUIRE(::kill(late, SIGCONT) == 0);
    CAPTURE(cluster.up_log(), described.out);
    REQUIRE(shown);
    CHECK(waits[0].task().index() == 0);
    CHECK(waits[0].awaited().starts_with("worker:1 ("));
    CHECK(waits[0].limit_ms() == 0);
    CHECK(described.out.find("generation 1: forming of the group") != std::string::npos);
    CHECK(cluster.Wait(id, seconds(60)) == 0);
  }
  SECTION("a launched program of which one process ends well and has not come") {
    const std::string id = submit(
        "2", {"sh", "-c", "[ \"$RANK\" = 1 ] && exit 0; exec " + kPrograms + "multi_worker 20"});
    CHECK(cluster.Wait(id, seconds(60)) == 1);
    const v1::Job job = cluster.Describe(id);
    CAPTURE(cluster.up_log(), job.error().message());
    CHECK(job.error().message().find("worker:1 (rank 1 of 2, ") == 0);
    CHECK(job.error().message().find("ended with exit code 0 while the others wait for it") !=
          std::string::npos);
  }
  SECTION("a program whose workers come and go") {
    const std::string id = submit(
        "2:2", {kPrograms + "elastic", "20", "worker:1", "7", std::to_string(SIGSTOP), "shard"});
    CheckShown(cluster, id, process(id));
    CHECK(cluster.Wait(id, seconds(60)) == 0);
    CHECK(cluster.Describe(id).restarts() == 0);
  }
  SECTION("a model job in step") {
    const TempFolder folder;
    const std::string file = folder.Write("job.yaml", FashionJob(1'000'000));
    ReplaceInFile(file,
                  "kind: parameter_server\n  # w1 is split over all parameter servers; the small "
                  "ones are placed in turn.\n  partitioner: {kind: min_size, min_shard_bytes: "
                  "65536}",
                  "kind: multi_worker_mirrored\n  workers: 2");
    const std::string id = cluster.Submit(file);
    REQUIRE(cluster.WaitForStep(id, 50, seconds(60)));
    pid_t executor = 0;
    const v1::Job before = cluster.Describe(id);
    for (const v1::TaskState& task : before.tasks()) {
      if (task.task().type() == "worker" && task.task().index() == 1) {
        executor = static_cast<pid_t>(task.executor_pid());
      }
    }
    REQUIRE(executor != 0);
    REQUIRE(::kill(executor, SIGSTOP) == 0);
    CheckShown(cluster, id, executor);
    CHECK(CountEvents(cluster.Describe(id), "GROUP_FORMED") == 1);
  }
}

}  // namespace
}  // namespace muster::testing
