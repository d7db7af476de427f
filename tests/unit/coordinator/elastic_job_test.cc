// Processes of a job that come and go one by one: who is replaced, and who is told of whom.
#include <algorithm>
#include <csignal>
#include <map>

#include "tests/unit/coordinator/elastic_cluster.h"

namespace muster::coordinator::testing {
namespace {

TEST_CASE("An elastic job begins with those that are there, and takes who comes up to its most",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 1);
  REQUIRE(cluster.Submit(ElasticSpec(2, 3)).ok());
  CHECK(cluster.Message() == "waiting for 1 more worker (1 of 2 is there)");
  (void)cluster.Join({"worker", 1});

  REQUIRE(cluster.job().state() == v1::JOB_STATE_RUNNING);
  const auto running = cluster.EventOf("JOB_RUNNING", "train");
  REQUIRE(running.has_value());
  CHECK(running->fields().at("processes") == "2");
  CHECK(running->fields().at("restarts") == "0");
  CHECK(cluster.Running() == 2);
  CHECK(cluster.Known(0).size() == 2);
  CHECK(cluster.Known(0) == cluster.Known(1));
  CHECK(cluster.Known(1).at(1) == cluster.Task(1).address());

  (void)cluster.Join({"worker", 2});
  CHECK(cluster.Running() == 3);
  (void)cluster.Join({"worker", 3});
  CHECK(cluster.Running() == 3);
  // Those that ran have been told of the third.
  CHECK(cluster.Known(0).size() == 3);
  CHECK(cluster.Known(0) == cluster.Known(2));
}

TEST_CASE("A process that dies is replaced alone, at another address, and the others are told",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(ElasticSpec(1, 3));
  const std::string before = cluster.Task(1).address();

  cluster.Ends(1, 0, SIGKILL);
  CHECK(cluster.Running() == 2);
  CHECK(cluster.Known(0).size() == 2);
  CHECK(cluster.EventOf("PROCESS_ENDED", "train")->message().find("signal 9") != std::string::npos);
  cluster.Pass(Millis(1'000));

  CHECK(cluster.Running() == 3);
  CHECK(cluster.Task(1).address() != before);
  CHECK(cluster.Known(0).at(1) == cluster.Task(1).address());
  CHECK(cluster.job().restarts() == 1);
  CHECK(cluster.Task(0).launch() != cluster.Task(1).launch());
  // Nobody else was asked to end.
  CHECK(std::ranges::none_of(cluster.at({"worker", 0}).commands,
                             [](const v1::Command& one) { return one.has_stop_launch(); }));
}

TEST_CASE("A worker that cannot start a process of an elastic job for now is asked again",
          "[coordinator][launch][elastic]") {
  const Status why = GENERATE(Unavailable("fork: Resource temporarily unavailable"),
                              MakeStatus(StatusCode::kUnknown, "Input/output error"));
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 3));
  (void)cluster.Join({"worker", 2}, "boot-1", "full", {}, {{v1::Command::kStartLaunch, why}});
  cluster.Pass(Millis(900));

  CHECK(cluster.Running() == 2);
  const auto unfit = cluster.EventOf("WORKER_UNFIT", "train");
  REQUIRE(unfit.has_value());
  CHECK(unfit->message().find(Message(why)) != std::string::npos);

  cluster.at({"worker", 2}).refuse.clear();
  cluster.Pass(Millis(60'000));
  CHECK(cluster.Running() == 3);
}

TEST_CASE("Below its least an elastic job waits, and says for how many",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(2, 4));

  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(5'000));
  CHECK(cluster.job().reason() == "WAITING_FOR_WORKERS");
  CHECK(cluster.Message() == "1 process of at least 2 is there: they wait for 1 more worker");
  CHECK(cluster.Task(1).state() == "lost");
  // It may live there: it keeps its place among those that others look for.
  CHECK(cluster.Known(0).size() == 2);

  (void)cluster.Join({"worker", 2});
  CHECK(cluster.Running() == 2);
  CHECK(cluster.job().reason().empty());
  CHECK(cluster.Task(2).worker().index() == 2);
  // Another process is that worker now: what ran there has ended.
  (void)cluster.Join({"worker", 1}, "boot-2");
  CHECK(cluster.Running() == 3);
  CHECK(cluster.Known(0).size() == 3);
}

TEST_CASE("An elastic job that loses a worker before it has begun says for how many it waits",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.at({"worker", 1}).needs_files = {v1::Command::kPrepareLaunch};
  REQUIRE(cluster.Submit(ElasticSpec(2, 4)).ok());
  REQUIRE(cluster.job().reason() == "STARTING_PROCESSES");

  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(5'000));
  CHECK(cluster.job().state() == v1::JOB_STATE_STARTING);
  CHECK(cluster.job().reason() == "WAITING_FOR_WORKERS");
  CHECK(cluster.Message() == "1 process of at least 2 is made ready: they wait for 1 more worker");

  (void)cluster.Join({"worker", 2});
  CHECK(cluster.job().state() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().reason().empty());
  CHECK(cluster.Running() == 2);
}

TEST_CASE("A process that was lost as it started keeps its place though none has begun before",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 1);
  // It has heard of the start, and its answer has not come.
  FakeDaemon& first = cluster.at({"worker", 0});
  first.needs_files = {v1::Command::kStartLaunch};
  REQUIRE(cluster.Submit(ElasticSpec(1, 2)).ok());
  v1::StartLaunch launched;
  for (const v1::Command& one : first.commands) {
    if (one.has_start_launch()) launched = one.start_launch();
  }
  REQUIRE(launched.launch() != 0);
  cluster.Kill({"worker", 0});
  cluster.Pass(Millis(5'000));
  CHECK(cluster.Task(0).state() == "lost");
  CHECK(cluster.job().reason() == "WAITING_FOR_WORKERS");

  SECTION("another worker gets another place") {
    (void)cluster.Join({"worker", 1});
    CHECK(cluster.Task(0).state() == "lost");
    CHECK(cluster.Task(1).state() == "running");
    CHECK(cluster.Task(1).worker().index() == 1);
  }
  SECTION("it is back with its process") {
    (void)cluster.Back(0, launched);
    cluster.Settle();
    CHECK(cluster.Task(0).state() == "running");
    CHECK(cluster.job().state() == v1::JOB_STATE_RUNNING);
    CHECK(cluster.EventOf("JOB_RUNNING", "train").has_value());
  }
}

TEST_CASE("A lost worker that is back with its process makes the latest one leave",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 2));
  FakeDaemon& lost = cluster.at({"worker", 1});
  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(5'000));
  const v1::StartLaunch launched = lost.launched;
  (void)cluster.Join({"worker", 2});
  REQUIRE(cluster.Running() == 2);

  (void)cluster.Back(1, launched);
  cluster.Settle();

  CHECK(cluster.Running() == 3);
  CHECK(std::ranges::any_of(cluster.at({"worker", 2}).commands,
                            [](const v1::Command& one) { return one.has_stop_launch(); }));
  cluster.Ends(2, 0, SIGTERM, true);
  CHECK(cluster.Running() == 2);
  CHECK(cluster.job().restarts() == 0);
}

TEST_CASE("A process that is one too many is asked again where its worker has missed that",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 2));
  const v1::StartLaunch launched = cluster.at({"worker", 1}).launched;
  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(5'000));
  (void)cluster.Join({"worker", 2});
  (void)cluster.Back(1, launched);
  cluster.Settle();
  REQUIRE(cluster.Running() == 3);

  // The connection has broken with the stop on it.
  const FakeDaemon& again = cluster.Join({"worker", 2});
  CHECK(std::ranges::any_of(again.commands,
                            [](const v1::Command& one) { return one.has_stop_launch(); }));
}

TEST_CASE("A worker that comes is told who is there and the others nothing that they know",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 2));
  const auto updates = [&] {
    return std::ranges::count_if(cluster.at({"worker", 0}).commands,
                                 [](const v1::Command& one) { return one.has_update_launch(); });
  };
  const auto before = updates();

  (void)cluster.Join({"worker", 2});  // there are enough
  (void)cluster.Join({"worker", 1});  // the same process, by another connection
  CHECK(updates() == before);
  CHECK(cluster.Known(1) == cluster.Known(0));
}

TEST_CASE("When many processes end together the others are told at once and once more of the rest",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 5);
  cluster.Run(ElasticSpec(1, 5, v1::RESTART_POLICY_NEVER));
  const auto updates = [&] {
    return std::ranges::count_if(cluster.at({"worker", 0}).commands,
                                 [](const v1::Command& one) { return one.has_update_launch(); });
  };
  const auto before = updates();

  for (const std::uint32_t place : {1U, 2U, 3U}) cluster.Ends(place, 3);
  CHECK(updates() == before + 1);
  CHECK(cluster.Known(0).size() == 4);
  cluster.Pass(Millis(1'000));

  CHECK(updates() == before + 2);
  CHECK(cluster.Known(0).size() == 2);
  cluster.Ends(4, 3);
  CHECK(updates() == before + 3);
  CHECK(cluster.Known(0).size() == 1);
}

TEST_CASE("Another coordinator tells each process of an elastic job who is there",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 2));
  const std::map<int, v1::StartLaunch> launched = {{0, cluster.at({"worker", 0}).launched},
                                                   {1, cluster.at({"worker", 1}).launched}};
  cluster.RestartCoordinator();

  for (const auto& [worker, launch] : launched) {
    (void)cluster.Back(worker, launch);
    cluster.Settle();
  }
  CHECK(cluster.Known(0).size() == 2);
  CHECK(cluster.Known(1).size() == 2);
}

TEST_CASE(
    "An elastic job is done when its processes end with 0, and replaces nobody after the first",
    "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(ElasticSpec(1, 3));
  cluster.Ends(0, 0);
  cluster.Pass(Millis(2'000));
  CHECK(cluster.Running() == 2);
  CHECK(cluster.job().reason() == "ENDING");

  SECTION("the others end well") {
    cluster.Ends(2, 0);
    cluster.Ends(1, 0);
    CHECK(cluster.job().state() == v1::JOB_STATE_SUCCEEDED);
  }
  SECTION("one is lost with its worker") {
    cluster.Ends(2, 0);
    cluster.Kill({"worker", 1});
    cluster.Pass(Millis(5'000));
    CHECK(cluster.job().state() == v1::JOB_STATE_SUCCEEDED);
  }
  SECTION("one fails") {
    cluster.Ends(2, 3);
    cluster.Ends(1, 0);
    CHECK(cluster.job().state() == v1::JOB_STATE_FAILED);
    CHECK(cluster.job().error().message().find(
              "worker:2 (on worker:2 of host) ended with exit code 3: it broke, when others had "
              "ended well") == 0);
  }
}

TEST_CASE("A worker that leaves takes its process along, and another worker gets one",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(ElasticSpec(1, 2));
  v1::DaemonMessage message;
  message.mutable_draining()->set_reason("SIGTERM");
  cluster.at({"worker", 1}).Say(message);
  cluster.Settle();
  CHECK_FALSE(cluster.at({"worker", 1}).released);

  cluster.Ends(1, 0, SIGTERM, true);

  CHECK(cluster.at({"worker", 1}).released);
  CHECK(cluster.Running() == 2);
  CHECK(cluster.Task(1).worker().index() == 2);
  CHECK(cluster.job().restarts() == 0);
}

TEST_CASE("A lost worker that is back and has never heard of its process is given another one",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 1);
  cluster.Run(ElasticSpec(1, 2));
  (void)cluster.Join({"worker", 1});
  REQUIRE(cluster.Running() == 2);
  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(5'000));
  REQUIRE(cluster.Task(1).state() == "lost");

  // The same daemon, which tells of no process.
  (void)cluster.Join({"worker", 1});
  CHECK(cluster.Task(1).state() == "lost");
  cluster.Pass(Millis(25'000));

  CHECK(cluster.Running() == 2);
  CHECK(cluster.Task(1).worker().index() == 1);
  CHECK(cluster.Task(1).state() == "running");
}

TEST_CASE("A lost process whose worker comes anew to another coordinator keeps it no longer",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 1);
  cluster.Run(ElasticSpec(1, 2));
  cluster.Kill({"worker", 0});
  cluster.Pass(Millis(5'000));
  REQUIRE(cluster.Task(0).state() == "lost");
  cluster.RestartCoordinator();

  (void)cluster.Join({"worker", 0}, "boot-2");
  cluster.Pass(Millis(25'000));

  CHECK(cluster.Running() == 1);
}

TEST_CASE("A process that ended with its worker while no coordinator was there is replaced at once",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 2));
  const v1::StartLaunch launched = cluster.at({"worker", 0}).launched;
  const std::uint64_t before = cluster.Task(1).launch();
  cluster.RestartCoordinator();

  cluster.Join({"worker", 0}).launched = launched;
  cluster.at({"worker", 0}).LaunchedProcess(0, v1::LaunchEvent::KIND_STARTED);
  (void)cluster.Join({"worker", 1}, "boot-2");
  // It may tell of one yet.
  CHECK(cluster.Task(1).launch() == before);
  cluster.Pass(Millis(1'500));

  CHECK(cluster.Task(0).launch() == launched.launch());
  CHECK(cluster.Running() == 2);
  CHECK(cluster.Task(1).launch() != before);
  CHECK(cluster.job().restarts() == 0);
}

TEST_CASE("A process that ended well as asked is no sign of the job's end to another coordinator",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(ElasticSpec(1, 2));
  const v1::StartLaunch launched = cluster.at({"worker", 0}).launched;
  v1::DaemonMessage message;
  message.mutable_draining()->set_reason("SIGTERM");
  cluster.at({"worker", 1}).Say(message);
  cluster.Ends(1, 0, 0, true);
  cluster.RestartCoordinator();

  cluster.Join({"worker", 0}).launched = launched;
  cluster.at({"worker", 0}).LaunchedProcess(0, v1::LaunchEvent::KIND_STARTED);
  (void)cluster.Join({"worker", 1}, "boot-2");
  cluster.Pass(Millis(1'000));

  CHECK(cluster.job().reason().empty());
  CHECK(cluster.Running() == 2);
}

TEST_CASE("How a worker's daemon ended is not taken for how its process did by another coordinator",
          "[coordinator][launch][elastic]") {
  const auto policy = GENERATE(v1::RESTART_POLICY_ON_FAILURE, v1::RESTART_POLICY_NEVER);
  const std::string how = policy == v1::RESTART_POLICY_NEVER ? "exit code 3" : "exit code 0";
  ElasticCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(ElasticSpec(1, 2, policy));
  const v1::StartLaunch launched = cluster.at({"worker", 0}).launched;
  cluster.core->OnDaemonExit({"worker", 1}, 1'002, how);
  cluster.Settle();
  REQUIRE(cluster.Task(2).state() == "running");
  // Another process is that worker now, so that its place is vacant.
  (void)cluster.Join({"worker", 1}, "boot-2");
  REQUIRE(cluster.Task(1).state() == "ended");
  cluster.RestartCoordinator();

  (void)cluster.Back(0, launched);
  (void)cluster.Join({"worker", 1}, "boot-2");
  (void)cluster.Join({"worker", 2}, "boot-2");
  cluster.Pass(Millis(25'000));

  CHECK(cluster.Running() == 2);
  CHECK(cluster.job().reason().empty());
}

TEST_CASE("A coordinator that is started again finds the processes of an elastic job",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(ElasticSpec(1, 3));
  std::map<int, v1::StartLaunch> launched;
  for (int i = 0; i < 3; ++i) launched[i] = cluster.at({"worker", i}).launched;
  cluster.RestartCoordinator();
  // One has its process still, one's has ended, one does not come back.
  for (const int i : {0, 1}) {
    FakeDaemon& daemon = cluster.Back(i, launched[i]);
    const auto place = static_cast<std::uint32_t>(i);
    if (i == 1) daemon.LaunchedProcess(place, kProcessExited, 0, SIGKILL);
    cluster.Settle();
  }
  CHECK(cluster.job().state() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Task(0).launch() == launched[0].launch());
  cluster.Pass(Millis(25'000));

  CHECK(cluster.Task(0).launch() == launched[0].launch());
  CHECK(cluster.Task(0).state() == "running");
  CHECK(cluster.Task(2).state() == "lost");
  CHECK(cluster.Running() == 2);
  CHECK(cluster.Known(0).size() == 3);
}

}  // namespace
}  // namespace muster::coordinator::testing
