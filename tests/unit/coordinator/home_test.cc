// Jobs without parameter servers: one worker's executor holds the variables.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

const TaskId kFirst{"worker", 0};
const TaskId kSecond{"worker", 1};

v1::JobSpec MirroredSpec() {
  v1::JobSpec spec = Cluster::Spec();
  spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MIRRORED);
  spec.mutable_strategy()->set_devices(2);
  return spec;
}

std::vector<std::uint64_t> Given(const FakeDaemon& daemon) {
  std::vector<std::uint64_t> ids;
  for (const testing::Given& one : daemon.given) ids.push_back(one.closure().id());
  return ids;
}

void SayStarted(FakeDaemon& daemon, std::uint32_t pid) {
  v1::DaemonMessage message;
  v1::ExecutorEvent& event = *message.mutable_executor();
  event.set_job_id(daemon.plan.job_id());
  event.set_view(daemon.plan.view());
  event.set_incarnation(daemon.start.program().incarnation());
  event.set_kind(v1::ExecutorEvent::KIND_STARTED);
  event.set_pid(pid);
  daemon.Say(message);
}

// A job whose steps 1 to 4 are in a checkpoint, and with 5 and 6 in flight.
struct Running {
  Running() {
    cluster.JoinAll(0, 2);
    REQUIRE(cluster.Submit(MirroredSpec()).ok());
    REQUIRE(cluster.Schedule(1, 4).ok());
    cluster.WorkAll();
    REQUIRE(cluster.Save(4).ok());
    REQUIRE(cluster.Schedule(5, 9).ok());
    REQUIRE(Given(cluster.at(kFirst)) == std::vector<std::uint64_t>{5, 6});
  }
  Cluster cluster;
};

TEST_CASE("A mirrored job runs without parameter servers, on one worker that saves its variables",
          "[coordinator][unit]") {
  Running running;
  Cluster& cluster = running.cluster;
  CHECK(cluster.at(kSecond).given.empty());
  CHECK(cluster.at(kSecond).start.plan().job_id().empty());
  const v1::StartExecutor& start = cluster.at(kFirst).start;
  CHECK(start.restore_from().empty());
  CHECK(start.plan().ps_size() == 0);
  REQUIRE(start.plan().variables_size() == 1);
  CHECK(start.plan().variables(0).name() == "w");
  CHECK(start.plan().variables(0).shards_size() == 0);
  const v1::Command& save = cluster.at(kFirst).commands.back();
  REQUIRE(save.has_save_variables());
  CHECK(save.save_variables().step() == 4);
  CHECK(save.save_variables().directory() == "step-4");
  REQUIRE(cluster.checkpoints.manifests.size() == 1);
  CHECK(cluster.checkpoints.manifests[0].files_size() == 1);
  CHECK(cluster.EventOf("JOB_RUNNING")->message() ==
        "running from step 0 of 100 on 2 devices of worker:0 (mirrored) (view 1)");
}

TEST_CASE("A job without parameter servers waits for a worker alone", "[coordinator][unit]") {
  Cluster cluster;
  REQUIRE(cluster.Submit(MirroredSpec()).ok());
  CHECK(cluster.job().record().job().message() == "waiting for a worker");
  (void)cluster.Join(kFirst);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A killed executor takes its variables with it: the job goes back to its checkpoint",
          "[coordinator][unit]") {
  Running running;
  Cluster& cluster = running.cluster;
  FakeDaemon& home = cluster.at(kFirst);
  home.Finish(home.given[0]);
  home.Finish(home.given[1]);
  cluster.at(kFirst).ExecutorExits("signal SIGKILL");
  cluster.Settle();
  CHECK(cluster.View() == 2);
  const auto lost = cluster.EventOf("EXECUTOR_LOST");
  REQUIRE(lost);
  CHECK(lost->fields().at("how") == "signal SIGKILL");
  CHECK(lost->fields().at("closures") == "7,8");
  const auto restored = cluster.EventOf("JOB_RESTORED");
  REQUIRE(restored);
  CHECK(restored->fields().at("step") == "4");
  CHECK(restored->fields().at("steps_lost") == "2");
  const v1::StartExecutor& start = cluster.at(kFirst).start;
  CHECK(start.restore_from() == "step-4");
  CHECK(start.plan().start_step() == 4);
  CHECK(start.plan().view() == 2);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  REQUIRE(cluster.Schedule(5, 9).ok());
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 9);
}

TEST_CASE("When its worker is lost the job goes on another from its checkpoint",
          "[coordinator][unit]") {
  Running running;
  Cluster& cluster = running.cluster;
  cluster.Kill(kFirst);
  cluster.Pass(Millis(1'000));
  REQUIRE(cluster.EventOf("WORKER_LOST"));
  CHECK(cluster.View() == 2);
  CHECK(cluster.at(kSecond).start.restore_from() == "step-4");
  REQUIRE(cluster.Schedule(5, 6).ok());
  CHECK(Given(cluster.at(kSecond)) == std::vector<std::uint64_t>{5, 6});
  // Back again, it is not needed; nor is it missed.
  (void)cluster.Join(kFirst, "boot-2");
  cluster.Kill(kFirst);
  cluster.Pass(Millis(1'000));
  CHECK(cluster.View() == 2);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A closure that ends the only executor every time is given up", "[coordinator][unit]") {
  Running running;
  Cluster& cluster = running.cluster;
  for (int i = 0; i < 3; ++i) {
    if (i > 0) REQUIRE(cluster.Schedule(5, 9).ok());
    cluster.at(kFirst).ExecutorExits("signal SIGSEGV");
    cluster.Settle();
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  REQUIRE(cluster.EventOf("POISON_CLOSURE"));
  CHECK(cluster.EventOf("POISON_CLOSURE")
            ->message()
            .starts_with("closure 5 has ended its executor 3 times"));
}

TEST_CASE("A checkpoint that the executor finds damaged is refused, the one before it is used",
          "[coordinator][unit]") {
  Running running;
  Cluster& cluster = running.cluster;
  cluster.WorkAll();
  REQUIRE(cluster.Save(9).ok());
  FakeDaemon& worker = cluster.at(kFirst);
  worker.refuse[v1::Command::kStartExecutor] = DataLoss("chunk 2 differs");
  worker.ExecutorExits("signal SIGKILL");
  cluster.Settle();
  // This worker finds all of them damaged.
  std::vector<std::string> refused;
  const v1::Job described = cluster.Described();
  for (const v1::Event& event : described.events()) {
    if (event.reason() == "CHECKPOINT_REFUSED") refused.push_back(event.fields().at("step"));
  }
  CHECK(refused == std::vector<std::string>{"9", "4"});
}

TEST_CASE("A checkpoint that the executor cannot read now is not refused for that",
          "[coordinator][unit]") {
  Running running;
  Cluster& cluster = running.cluster;
  const Status error = GENERATE(Unknown("read /x: Stale file handle"), NotFound("no /x here"),
                                PermissionDenied("open /x: Permission denied"));
  for (const TaskId& task : {kFirst, kSecond}) {
    cluster.at(task).refuse[v1::Command::kStartExecutor] = error;
  }
  cluster.at(kFirst).ExecutorExits("signal SIGKILL");
  cluster.Pass(Millis(10'000));

  CHECK_FALSE(cluster.EventOf("CHECKPOINT_REFUSED"));
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  for (const TaskId& task : {kFirst, kSecond}) cluster.at(task).refuse.clear();
  cluster.Pass(Millis(61'000), Millis(250));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Open()->plan().start_step() == 4);
}

TEST_CASE("A connection that is made anew costs a home nothing, and closures keep their order",
          "[coordinator][unit]") {
  Running running;
  Cluster& cluster = running.cluster;
  FakeDaemon& before = cluster.at(kFirst);
  const SessionId old = before.session;
  cluster.core->OnStreamEnded(old);
  FakeDaemon& after = cluster.Join(kFirst);
  CHECK(cluster.View() == 1);
  CHECK(Given(after) == std::vector<std::uint64_t>{5, 6});
  const testing::Given first = after.given[0];
  after.given.pop_front();
  after.Finish(first, Unavailable("not yet"));
  after.given.clear();
  cluster.Pass(Millis(300));
  REQUIRE_FALSE(after.given.empty());
  CHECK(after.given[0].closure().id() == 5);
}

TEST_CASE("Another executor process in the same view has no variables: a new view",
          "[coordinator][unit]") {
  Running running;
  Cluster& cluster = running.cluster;
  CHECK(cluster.View() == 1);
  SayStarted(cluster.at(kFirst), 4712);
  cluster.Settle();
  CHECK(cluster.View() == 2);
  CHECK(cluster.at(kFirst).start.restore_from() == "step-4");
}

TEST_CASE("A restarted coordinator takes a job without its executor back to the checkpoint",
          "[coordinator][unit]") {
  Running running;
  Cluster& cluster = running.cluster;
  cluster.RestartCoordinator();
  cluster.JoinAll(0, 1, "boot-2");
  CHECK(cluster.View() == 2);
  CHECK(cluster.at(kFirst).start.restore_from() == "step-4");
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

}  // namespace
}  // namespace muster::coordinator
