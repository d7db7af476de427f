// One task after another is killed or paused in the middle of a job: the loss is noticed in time,
// the job ends well by itself, and its story names the loss.
#include <csignal>
#include <thread>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

// What docs/events.md promises.
constexpr std::int64_t kKilledLimitMs = 1'000;
constexpr std::int64_t kSilentLimitMs = 4'000;

// The event comes, and a hundred steps after it; an end is for the test to judge.
bool GoesOnAfter(const Cluster& cluster, const std::string& id, const std::string& reason) {
  v1::Job job;
  return Eventually(seconds(60),
                    [&] {
                      job = cluster.Describe(id);
                      return FindEvent(job, reason) != nullptr || job.ended_ms() != 0;
                    }) &&
         cluster.WaitForStep(id, job.progress().step() + 100, seconds(60));
}

struct FaultFixture {
  TempFolder folder;
  // Some seconds of work, checkpoints in between.
  SumJob sums{folder, 2000, 10, 10, 400, "checkpoint: {every_steps: 300}\n"};
  Cluster cluster;

  Lateness lateness;

  // The event is there, and is not older than `limit` after the signal. Several threads of several
  // processes stand between the two: each may be woken late.
  const v1::Event& CheckNoticed(const v1::Job& job, const std::string& reason,
                                std::int64_t signal_ms, std::int64_t limit_ms) const {
    const v1::Event* event = FindEvent(job, reason);
    CAPTURE(Story(job), reason, signal_ms, lateness.worst_ms());
    REQUIRE(event != nullptr);
    CHECK(event->time_ms() - signal_ms <= limit_ms + 4 * lateness.worst_ms());
    return *event;
  }

  // Goes on after such an event, and ends well, with the only result that exactly-once allows.
  void CheckEnd(const std::string& id, const std::string& reason) {
    CHECK(GoesOnAfter(cluster, id, reason));
    sums.Hurry();
    const int code = cluster.Wait(id, seconds(120));
    CAPTURE(cluster.up_log(), Story(cluster.Describe(id)));
    REQUIRE(code == 0);
    REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
    CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
  }
};

TEST_CASE_METHOD(FaultFixture, "a killed worker costs a job nothing but time", "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 200, seconds(60)));

  const int pid = cluster.PidOf("worker:1");
  const std::int64_t killed = NowMs();
  REQUIRE(::kill(pid, SIGKILL) == 0);
  CheckEnd(id, "WORKER_BACK");

  const v1::Job job = cluster.Describe(id);
  const v1::Event& lost = CheckNoticed(job, "WORKER_LOST", killed, kKilledLimitMs);
  CHECK(lost.task().index() == 1);
  CHECK(Field(lost, "pid") == pid);
  const v1::Event* back = FindEvent(job, "WORKER_BACK");
  REQUIRE(back != nullptr);
  CHECK(Field(*back, "gap_ms") > 0);
  CHECK(Field(*back, "pid") != pid);
}

TEST_CASE_METHOD(FaultFixture, "a job returns to its checkpoint when a ps is killed", "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 700, seconds(60)));

  const int pid = cluster.PidOf("ps:1");
  const std::int64_t killed = NowMs();
  REQUIRE(::kill(pid, SIGKILL) == 0);
  CheckEnd(id, "JOB_RESTORED");

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  const v1::Event& lost = CheckNoticed(job, "PS_LOST", killed, kKilledLimitMs);
  CHECK(Field(lost, "pid") == pid);
  const v1::Event* restored = FindEvent(job, "JOB_RESTORED");
  REQUIRE(restored != nullptr);
  CHECK(Field(*restored, "step") >= 600);
  CHECK(Field(*restored, "steps_lost") >= 0);
  CHECK(job.view() > 1);
}

TEST_CASE("a job that is saved by time does not begin anew when a ps is killed", "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 2000, 10, 20, 800, "checkpoint: {every_seconds: 1}\n");
  Cluster cluster;
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(Eventually(
      seconds(60), [&] { return FindEvent(cluster.Describe(id), "CHECKPOINT_SAVED") != nullptr; }));
  REQUIRE(::kill(cluster.PidOf("ps:0"), SIGKILL) == 0);
  CHECK(GoesOnAfter(cluster, id, "JOB_RESTORED"));
  sums.Hurry();

  REQUIRE(cluster.Wait(id, seconds(120)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  const v1::Event* restored = FindEvent(job, "JOB_RESTORED");
  REQUIRE(restored != nullptr);
  CHECK(Field(*restored, "step") > 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
}

TEST_CASE_METHOD(FaultFixture, "a job outlives its coordinator", "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 700, seconds(60)));

  REQUIRE(cluster.Kill("coordinator", SIGKILL));
  REQUIRE(Eventually(seconds(20), [&] { return cluster.Muster({"status"}).code == 0; }));
  CheckEnd(id, "VIEW_ADOPTED");

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  const v1::Event* restarted = FindEvent(job, "COORDINATOR_RESTARTED");
  REQUIRE(restarted != nullptr);
  CHECK(Field(*restarted, "gap_ms") > 0);
  CHECK(Field(*restarted, "gap_ms") < 20'000);
  CHECK(restarted->message().find(" s)") != std::string::npos);
  // Its variables and what was done of it are on the parameter servers.
  const v1::Event* adopted = FindEvent(job, "VIEW_ADOPTED");
  REQUIRE(adopted != nullptr);
  CHECK(adopted->message().starts_with("goes on where it stood: 0 steps lost, "));
  CHECK(Field(*adopted, "steps_lost") == 0);
  CHECK(Field(*adopted, "step") >= 700);
  CHECK(Field(*adopted, "gap_ms") >= Field(*restarted, "gap_ms"));
  CHECK(FindEvent(job, "JOB_RESTORED") == nullptr);
  CHECK(job.view() == 1);
}

TEST_CASE_METHOD(FaultFixture,
                 "a coordinator that dies with a ps goes back to the checkpoint, and says why",
                 "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 700, seconds(60)));

  const int coordinator = cluster.PidOf("coordinator");
  const int ps = cluster.PidOf("ps:1");
  REQUIRE(::kill(coordinator, SIGKILL) == 0);
  REQUIRE(::kill(ps, SIGKILL) == 0);
  REQUIRE(Eventually(seconds(20), [&] { return cluster.Muster({"status"}).code == 0; }));
  CheckEnd(id, "JOB_RESTORED");

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  const v1::Event* given_up = FindEvent(job, "VIEW_GIVEN_UP");
  REQUIRE(given_up != nullptr);
  CHECK(given_up->message().find("ps:1 is another process now") != std::string::npos);
  const v1::Event* restored = FindEvent(job, "JOB_RESTORED");
  REQUIRE(restored != nullptr);
  CHECK(Field(*restored, "step") >= 600);
  CHECK(FindEvent(job, "VIEW_ADOPTED") == nullptr);
}

TEST_CASE_METHOD(FaultFixture, "a killed driver costs a job nothing but a second", "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 400, seconds(60)));

  const int pid = cluster.PidOf("trainer");
  REQUIRE(pid > 1);
  const std::int64_t killed = NowMs();
  REQUIRE(::kill(pid, SIGKILL) == 0);
  CheckEnd(id, "DRIVER_REPLACED");

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  const v1::Event& lost = CheckNoticed(job, "DRIVER_LOST", killed, kKilledLimitMs);
  CHECK(Field(lost, "pid") == pid);
  CHECK(lost.fields().at("how") == "signal SIGKILL");
  const v1::Event* back = FindEvent(job, "DRIVER_REPLACED");
  REQUIRE(back != nullptr);
  CHECK(Field(*back, "pid") != pid);
  CHECK(Field(*back, "step") >= 300);
  // What was done stayed done.
  CHECK(job.view() == 1);
}

TEST_CASE("a driver that stands still is replaced, and not obeyed when it wakes up", "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 2000, 10, 20, 400, "checkpoint: {every_steps: 300}\n");
  Cluster cluster({.environment = {{"MUSTER_DRIVER_TIMEOUT", "5s"}}});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 400, seconds(60)));

  const int pid = cluster.PidOf("trainer");
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  REQUIRE(Eventually(
      seconds(30), [&] { return FindEvent(cluster.Describe(id), "DRIVER_REPLACED") != nullptr; }));
  CHECK(::kill(pid, 0) != 0);
  CHECK(GoesOnAfter(cluster, id, "DRIVER_REPLACED"));
  sums.Hurry();
  const int code = cluster.Wait(id, seconds(120));
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  REQUIRE(code == 0);
  const v1::Event* stuck = FindEvent(job, "DRIVER_STUCK");
  REQUIRE(stuck != nullptr);
  CHECK(Field(*stuck, "pid") == pid);
  CHECK(Field(*stuck, "silence_ms") >= 4'500);
  CHECK(job.view() == 1);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
}

TEST_CASE_METHOD(FaultFixture, "a coordinator that stands still fails nothing", "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 400, seconds(60)));

  const int pid = cluster.PidOf("coordinator");
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  std::this_thread::sleep_for(seconds(20));  // longer than any lease, and than a driver's silence
  REQUIRE(::kill(pid, SIGCONT) == 0);
  CheckEnd(id, "COORDINATOR_STALLED");

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(FindEvent(job, "DRIVER_STUCK") == nullptr);
  CHECK(FindEvent(job, "DRIVER_LOST") == nullptr);
  // It heard nobody meanwhile, and gave nobody up for that.
  const v1::Event* slept = FindEvent(job, "COORDINATOR_STALLED");
  REQUIRE(slept != nullptr);
  CHECK(Field(*slept, "slept_ms") >= 19'000);
  CHECK(FindEvent(job, "PS_LOST") == nullptr);
  CHECK(FindEvent(job, "WORKER_LOST") == nullptr);
  CHECK(job.view() == 1);
}

TEST_CASE_METHOD(FaultFixture, "tasks that sleep past their lease are used again", "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 200, seconds(60)));
  const int worker = cluster.PidOf("worker:2");
  const int ps = cluster.PidOf("ps:0");

  const std::int64_t stopped = NowMs();
  REQUIRE(::kill(worker, SIGSTOP) == 0);
  REQUIRE(::kill(ps, SIGSTOP) == 0);
  const bool noticed = Eventually(
      seconds(20), [&] { return cluster.PidOf("worker:2") == 0 && cluster.PidOf("ps:0") == 0; });
  REQUIRE(::kill(worker, SIGCONT) == 0);
  REQUIRE(::kill(ps, SIGCONT) == 0);
  CHECK(noticed);
  CHECK(Eventually(seconds(20), [&] {
    return cluster.PidOf("worker:2") == worker && cluster.PidOf("ps:0") == ps;
  }));
  CheckEnd(id, "PS_BACK");

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(CheckNoticed(job, "WORKER_LOST", stopped, kSilentLimitMs).task().index() == 2);
  CheckNoticed(job, "PS_LOST", stopped, kSilentLimitMs);
  // Its memory was whole all the time: nothing was lost.
  CHECK(FindEvent(job, "PS_BACK") != nullptr);
  CHECK(job.view() == 1);
}

}  // namespace
}  // namespace muster::testing
