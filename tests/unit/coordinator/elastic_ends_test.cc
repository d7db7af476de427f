// By what a job ends whose processes come and go, and by what it does not.
#include <algorithm>
#include <csignal>
#include <map>

#include "tests/unit/coordinator/elastic_cluster.h"

namespace muster::coordinator::testing {
namespace {

TEST_CASE("Processes that fail at once, one after another, end the job with the last one's cause",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 1);
  v1::JobSpec spec = ElasticSpec(1, 2);
  spec.mutable_launch()->set_max_restarts(2);
  cluster.Run(spec);
  for (int i = 0; i < 2; ++i) {
    cluster.Ends(0, 3);
    cluster.Pass(Millis(5'000));
    REQUIRE(cluster.Running() == 1);
  }
  // One that has lived for long is no quick failure.
  cluster.Pass(Millis(70'000));
  cluster.Ends(0, 0, SIGKILL);
  cluster.Pass(Millis(5'000));
  REQUIRE(cluster.Running() == 1);
  cluster.Ends(0, 3);
  cluster.Pass(Millis(5'000));
  REQUIRE(cluster.Running() == 1);

  cluster.Ends(0, 3);

  CHECK(cluster.job().state() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().error().message().find("worker:0 (on worker:0 of host) ended with exit code "
                                             "3: it broke, and 2 processes before it, each within "
                                             "60 s of its start") == 0);
  CHECK(cluster.job().restarts() == 4);
}

TEST_CASE("A process that says that any other would end alike ends the job, and none is replaced",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(ElasticSpec(2, 4));

  cluster.EndsSaying(1, "exit code 3", [](v1::LaunchEvent& event) {
    event.set_exit_code(3);
    event.set_final(true);
  });
  for (const std::uint32_t place : {0U, 2U}) cluster.Ends(place, 0, SIGTERM, true);

  CHECK(cluster.job().state() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().error().message().find("ended with exit code 3, as any other in its place "
                                             "would") != std::string::npos);
  CHECK(cluster.job().restarts() == 0);
}

TEST_CASE("The policies of exit codes and of never hold for elastic jobs",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 3);
  SECTION("an exit code of its own is the program's word") {
    cluster.Run(ElasticSpec(1, 3, v1::RESTART_POLICY_EXIT_CODE));
    cluster.Ends(1, 0, SIGSEGV);
    cluster.Pass(Millis(1'000));
    CHECK(cluster.Running() == 3);
    cluster.Ends(2, 4);
    for (const std::uint32_t place : {0U, 1U}) cluster.Ends(place, 0, SIGTERM, true);
    CHECK(cluster.job().state() == v1::JOB_STATE_FAILED);
  }
  SECTION("never: the others go on, down to the least") {
    cluster.Run(ElasticSpec(2, 3, v1::RESTART_POLICY_NEVER));
    cluster.Ends(1, 0, SIGKILL);
    cluster.Pass(Millis(5'000));
    CHECK(cluster.Running() == 2);
    cluster.Ends(2, 0, SIGKILL);
    cluster.Ends(0, 0, SIGTERM, true);
    CHECK(cluster.job().state() == v1::JOB_STATE_FAILED);
    CHECK(cluster.job().error().message().find("fewer than 2 are left") != std::string::npos);
  }
}

TEST_CASE("An elastic job that replaces nobody ends when its last workers are lost",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 2, v1::RESTART_POLICY_NEVER));
  cluster.Ends(1, 0, SIGKILL);
  REQUIRE(cluster.Running() == 1);

  cluster.Kill({"worker", 0});
  (void)cluster.Join({"worker", 0}, "boot-2");
  cluster.Pass(Millis(5'000));

  CHECK(cluster.job().state() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().error().message().find("fewer than 1 of its processes") == 0);
}

TEST_CASE("A stop asks the processes of an elastic job to end, and replaces none",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 2));
  cluster.any("train").Stop(Millis(1'000));
  cluster.Settle();
  for (const std::uint32_t place : {0U, 1U}) cluster.Ends(place, 0, SIGTERM, true);
  CHECK(cluster.job().state() == v1::JOB_STATE_CANCELLED);
  CHECK(cluster.job().restarts() == 0);
}

// One place of an elastic job runs; the worker of the other one waits for files.
class HalfReady : public ElasticCluster {
 public:
  HalfReady() {
    JoinAll(0, 2);
    Run(ElasticSpec(1, 2));
    Ends(1, 0, SIGKILL);
    at({"worker", 1}).needs_files = {v1::Command::kPrepareLaunch};
    Pass(Millis(1'000));
    REQUIRE(Running() == 1);
    REQUIRE(Task(1).state() == "starting");
  }
  // How many processes that worker was asked to start.
  auto Started(int worker) {
    return std::ranges::count_if(at({"worker", worker}).commands, &v1::Command::has_start_launch);
  }
};

TEST_CASE("A process that comes when the others have done all is nobody's failure",
          "[coordinator][launch][elastic]") {
  const auto policy = GENERATE(v1::RESTART_POLICY_ON_FAILURE, v1::RESTART_POLICY_NEVER);
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 3, policy));
  (void)cluster.Join({"worker", 2});
  REQUIRE(cluster.Running() == 3);

  SECTION("and none is started while they are there") {
    cluster.EndsTooLate(2);
    cluster.Pass(Millis(5'000));
    CHECK(cluster.Running() == 2);
    CHECK(cluster.job().restarts() == 0);
    cluster.Ends(0, 0);
    cluster.Ends(1, 0);
    CHECK(cluster.job().state() == v1::JOB_STATE_SUCCEEDED);
  }
  SECTION("also when one of them has ended") {
    CHECK_FALSE(cluster.Ended(2));
    cluster.Ends(0, 0);
    CHECK(cluster.Ended(2));
    cluster.EndsTooLate(2);
    cluster.Ends(1, 0);
    CHECK(cluster.job().state() == v1::JOB_STATE_SUCCEEDED);
  }
  SECTION("nor does it say that all is done, with 0 or not") {
    cluster.EndsTooLate(2, 0);
    cluster.Ends(1, 0, SIGKILL);
    cluster.Pass(Millis(30'000));
    if (policy == v1::RESTART_POLICY_NEVER) {
      CHECK(cluster.Running() == 1);
      cluster.Ends(0, 3);
      CHECK(cluster.job().state() == v1::JOB_STATE_FAILED);
    } else {
      // Who was there is missed again.
      CHECK(cluster.Running() == 3);
    }
  }
  SECTION("to another coordinator neither") {
    const bool leave = GENERATE(false, true);
    cluster.EndsTooLate(2);
    const std::map<int, v1::StartLaunch> launched = {{0, cluster.at({"worker", 0}).launched},
                                                     {1, cluster.at({"worker", 1}).launched}};
    cluster.RestartCoordinator();
    for (const auto& [worker, launch] : launched) {
      (void)cluster.Back(worker, launch);
    }
    (void)cluster.Join({"worker", 2}, "boot-2");
    cluster.Pass(Millis(30'000));
    CHECK(cluster.Running() == 2);
    if (leave) {
      // Nothing has failed, so that others are started in their places.
      for (const std::uint32_t place : {0U, 1U}) cluster.Ends(place, 0, SIGTERM, true);
      cluster.Pass(Millis(30'000));
      CHECK(cluster.Running() == 3);
      return;
    }
    cluster.Ends(0, 0);
    cluster.Ends(1, 0);
    CHECK(cluster.job().state() == v1::JOB_STATE_SUCCEEDED);
  }
}

TEST_CASE("What is only made ready for a process is given up when the others have ended well",
          "[coordinator][launch][elastic]") {
  HalfReady cluster;

  cluster.Ends(0, 0);

  CHECK(cluster.job().state() == v1::JOB_STATE_SUCCEEDED);
  cluster.at({"worker", 1}).FilesCome();
  cluster.Pass(Millis(1'000));
  CHECK(cluster.job().state() == v1::JOB_STATE_SUCCEEDED);
  CHECK(cluster.Started(1) == 1);
}

TEST_CASE("A stop does not wait for what is only made ready for a process",
          "[coordinator][launch][elastic]") {
  SECTION("beside one that runs") {
    HalfReady cluster;
    cluster.any("train").Stop(Millis(60'000));
    cluster.Settle();
    CHECK(cluster.job().state() == v1::JOB_STATE_STOPPING);
    cluster.Ends(0, 0, SIGTERM, true);
    CHECK(cluster.job().state() == v1::JOB_STATE_CANCELLED);
  }
  SECTION("where none has begun") {
    ElasticCluster cluster;
    cluster.JoinAll(0, 2);
    cluster.at({"worker", 1}).needs_files = {v1::Command::kPrepareLaunch};
    REQUIRE(cluster.Submit(ElasticSpec(2, 2)).ok());
    REQUIRE(cluster.job().state() == v1::JOB_STATE_STARTING);
    cluster.any("train").Stop(Millis(60'000));
    cluster.Settle();
    CHECK(cluster.job().state() == v1::JOB_STATE_CANCELLED);
  }
}

TEST_CASE("A process that failed is not replaced by another coordinator either where none is",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(ElasticSpec(1, 3, v1::RESTART_POLICY_NEVER));
  const std::map<int, v1::StartLaunch> launched = {{0, cluster.at({"worker", 0}).launched},
                                                   {2, cluster.at({"worker", 2}).launched}};
  cluster.Ends(1, 3);
  cluster.RestartCoordinator();

  (void)cluster.Join({"worker", 1});
  for (const auto& [worker, launch] : launched) {
    (void)cluster.Back(worker, launch);
  }
  cluster.Pass(Millis(25'000));

  CHECK(cluster.job().state() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Running() == 2);
  CHECK(cluster.Task(1).state() == "ended");
}

TEST_CASE("What an elastic job fails by is known to another coordinator, however the others end",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(2, 2, v1::RESTART_POLICY_NEVER));
  const v1::StartLaunch launched = cluster.at({"worker", 0}).launched;
  cluster.Ends(1, 3);
  REQUIRE(cluster.job().state() == v1::JOB_STATE_RUNNING);
  cluster.RestartCoordinator();

  FakeDaemon& daemon = cluster.Back(0, launched);
  cluster.Settle();
  const auto stops = std::ranges::count_if(
      daemon.commands, [](const v1::Command& command) { return command.has_stop_launch(); });
  CHECK(stops > 0);
  cluster.Ends(0, 0);

  CHECK(cluster.job().state() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().error().message().find("worker:1 (on worker:1 of host) ended with exit code "
                                             "3: it broke, and fewer than 2 are left") == 0);
}

}  // namespace
}  // namespace muster::coordinator::testing
