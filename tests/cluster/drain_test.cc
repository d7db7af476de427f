// An operator takes tasks of a running cluster out of work, and lets them in again.
#include <csignal>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

v1::TaskState StateOf(const Cluster& cluster, const std::string& task) {
  const v1::ClusterStatus status = cluster.Status();
  for (const v1::TaskState& state : status.tasks()) {
    if (state.task().type() + ":" + std::to_string(state.task().index()) == task) return state;
  }
  return {};
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A job that is under way, and the end that it must have whatever happens.
struct Running {
  explicit Running(Cluster::Options options) : cluster(std::move(options)) {
    id = cluster.Submit(sums.file);
    REQUIRE(cluster.WaitForStep(id, 50, seconds(60)));
  }
  void CheckEnd() const {
    sums.Hurry();
    const int code = cluster.Wait(id, seconds(240));
    CAPTURE(cluster.up_log(), Story(cluster.Describe(id)));
    REQUIRE(code == 0);
    REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
    CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
  }
  // How many steps each return to a checkpoint has cost.
  std::int64_t StepsLost() const {
    std::int64_t lost = 0;
    const v1::Job job = cluster.Describe(id);
    for (const v1::Event& event : job.events()) {
      if (event.reason() == "JOB_RESTORED") lost += Field(event, "steps_lost");
    }
    return lost;
  }

  TempFolder folder;
  SumJob sums{folder, 2500, 10, 10, 300};
  Cluster cluster;
  std::string id;
};

TEST_CASE(
    "a worker is drained under a running job, stays out when it is started anew, and comes "
    "back",
    "[cluster]") {
  Running f({.ps = 1, .workers = 2});
  const int pid = f.cluster.PidOf("worker:1");
  const RunResult drained = f.cluster.Muster({"drain", "worker:1"});
  CAPTURE(drained.err, f.cluster.up_log());
  REQUIRE(drained.code == 0);
  CHECK(Has(drained.err, "worker:1 is drained"));
  // It is on its way out, and gone when `up` has seen that.
  CHECK(Eventually(seconds(30), [&] { return ::kill(pid, 0) != 0; }));
  // `up` starts it anew, as any supervisor does.
  REQUIRE(Eventually(seconds(30), [&] { return StateOf(f.cluster, "worker:1").pid() != 0; }));
  const v1::TaskState idle = StateOf(f.cluster, "worker:1");
  CHECK(idle.state() == "drained");
  CHECK(static_cast<int>(idle.pid()) != pid);
  CHECK(
      Has(f.cluster.up_log(), "worker:1 (pid " + std::to_string(pid) + ") ended with exit code 0"));
  const RunResult status = f.cluster.Muster({"status"});
  CHECK(Has(status.out, "worker:1 was taken out by an operator"));
  CHECK(Has(f.cluster.Muster({"status", "--wait", "ready"}).out, "drained"));

  const std::uint64_t step = f.cluster.Describe(f.id).progress().step();
  REQUIRE(f.cluster.WaitForStep(f.id, step + 50, seconds(60)));
  CHECK(StateOf(f.cluster, "worker:1").closures_done() == 0);
  CHECK(f.cluster.Describe(f.id).view() == 1);

  REQUIRE(f.cluster.Muster({"undrain", "worker:1"}).code == 0);
  CHECK(
      Eventually(seconds(60), [&] { return StateOf(f.cluster, "worker:1").closures_done() > 0; }));
  f.CheckEnd();
  CHECK(FindEvent(f.cluster.Describe(f.id), "TASK_DRAINING") != nullptr);
}

TEST_CASE("a parameter server is drained: the job is saved, goes on without it, and loses no step",
          "[cluster]") {
  Running f({.ps = 2, .workers = 2});
  const RunResult drained = f.cluster.Muster({"drain", "ps:1"});
  CAPTURE(drained.err, f.cluster.up_log());
  REQUIRE(drained.code == 0);
  const bool restored = Eventually(
      seconds(60), [&] { return FindEvent(f.cluster.Describe(f.id), "JOB_RESTORED") != nullptr; });
  CAPTURE(Story(f.cluster.Describe(f.id)));
  REQUIRE(restored);
  CHECK(f.StepsLost() == 0);
  CHECK(StateOf(f.cluster, "ps:1").job_bytes_size() == 0);
  CHECK(StateOf(f.cluster, "ps:0").job_bytes_size() == 1);
  f.CheckEnd();
}

TEST_CASE("what was drained stays out when the coordinator is killed, and when `up` begins anew",
          "[cluster]") {
  const TempFolder state;
  {
    Running f({.ps = 1, .workers = 2, .state = state.path()});
    REQUIRE(f.cluster.Muster({"drain", "worker:0"}).code == 0);
    REQUIRE(f.cluster.Kill("coordinator", SIGKILL));
    REQUIRE(Eventually(seconds(60), [&] {
      const RunResult status = f.cluster.Muster({"status", "-o", "json"});
      return status.code == 0 && StateOf(f.cluster, "worker:0").pid() != 0 &&
             StateOf(f.cluster, "worker:1").state() == "up";
    }));
    CHECK(StateOf(f.cluster, "worker:0").state() == "drained");
    f.CheckEnd();
    CHECK(f.StepsLost() == 0);
    REQUIRE(f.cluster.Drain() == 0);
  }
  const Cluster again({.ps = 1, .workers = 2, .state = state.path()});
  CHECK(StateOf(again, "worker:0").state() == "drained");
  CHECK(again.Muster({"undrain", "worker:0"}).code == 0);
  CHECK(StateOf(again, "worker:0").state() == "up");
}

TEST_CASE("the only worker is drained: its job is saved and waits, and goes on when it is let in",
          "[cluster]") {
  Running f({.ps = 1, .workers = 1});
  const RunResult drained = f.cluster.Muster({"drain", "worker:0"});
  CAPTURE(drained.err, f.cluster.up_log());
  REQUIRE(drained.code == 0);
  CHECK(Has(drained.err, "no worker is up now: jobs that need one wait for it"));
  REQUIRE(Eventually(seconds(30),
                     [&] { return f.cluster.Describe(f.id).reason() == "WAITING_FOR_TASKS"; }));
  CHECK(Has(f.cluster.Describe(f.id).message(), "worker:0 (drained)"));
  CHECK(FindEvent(f.cluster.Describe(f.id), "CHECKPOINT_SAVED") != nullptr);

  CHECK(f.cluster.Muster({"drain", "worker:3"}).code == 3);
  CHECK(f.cluster.Muster({"drain", "chief:0"}).code == 2);
  REQUIRE(f.cluster.Muster({"undrain", "worker:0"}).code == 0);
  f.CheckEnd();
  CHECK(f.StepsLost() == 0);
}

TEST_CASE("status names the coordinator's page", "[cluster]") {
  const Cluster cluster({.ps = 0, .workers = 1});
  const std::string address = cluster.Status().page_address();
  CHECK(Has(cluster.up_log(), "page http://" + address + "/"));
  CHECK(Has(cluster.Muster({"status"}).out, "page        http://" + address + "/\n"));
}

}  // namespace
}  // namespace muster::testing
