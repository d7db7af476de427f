// Processes of a job that come and go one by one: who is replaced, who is told of whom, when it
// ends.
#include <algorithm>
#include <csignal>
#include <map>

#include "common/cluster/worker_book.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {
namespace {

constexpr auto kProcessExited = v1::LaunchEvent::KIND_EXITED;

v1::JobSpec ElasticSpec(std::uint32_t least, std::uint32_t most,
                        v1::RestartPolicy policy = v1::RESTART_POLICY_ON_FAILURE) {
  v1::JobSpec spec;
  spec.set_name("train");
  spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
  spec.mutable_strategy()->set_workers(least);
  spec.mutable_strategy()->set_max_workers(most);
  v1::LaunchSpec& launch = *spec.mutable_launch();
  launch.set_command("train");
  launch.set_elastic(true);
  launch.set_restart(policy);
  return spec;
}

class ElasticCluster : public Cluster {
 public:
  const v1::Job& job() { return any("train").record().job(); }
  std::string Message() { return job().message(); }
  // What process `place` is, as people see it.
  v1::LaunchedTask Task(std::uint32_t place) {
    for (const v1::LaunchedTask& task : job().launch().tasks()) {
      if (task.task().index() == place) return task;
    }
    return {};
  }
  int Running() {
    const auto& tasks = job().launch().tasks();
    return static_cast<int>(
        std::ranges::count_if(tasks, [](const auto& task) { return task.state() == "running"; }));
  }
  void Run(const v1::JobSpec& spec) {
    REQUIRE(Submit(spec).ok());
    REQUIRE(job().state() == v1::JOB_STATE_RUNNING);
  }
  void Ends(std::uint32_t place, std::uint32_t code, std::uint32_t signal = 0, bool asked = false) {
    at(FromProto(Task(place).worker())).LaunchedProcess(place, kProcessExited, code, signal, asked);
    Settle();
  }
  // Where the process on that worker was told last that others are.
  std::map<int, std::string> Known(int worker) {
    std::string text;
    for (const v1::Command& command : at({"worker", worker}).commands) {
      if (command.has_start_launch()) text = command.start_launch().workers();
      if (command.has_update_launch()) text = command.update_launch().workers();
    }
    const auto book = cluster::ParseWorkerBook(text);
    REQUIRE(book.ok());
    return book->addresses;
  }
};

TEST_CASE("An elastic job begins with those that are there, and takes who comes up to its most",
          "[coordinator][launch][elastic]") {
  ElasticCluster cluster;
  cluster.JoinAll(0, 1);
  REQUIRE(cluster.Submit(ElasticSpec(2, 3)).ok());
  CHECK(cluster.Message() == "waiting for 1 more worker (1 of 2 is there)");
  (void)cluster.Join({"worker", 1});

  REQUIRE(cluster.job().state() == v1::JOB_STATE_RUNNING);
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

  FakeDaemon& back = cluster.Join({"worker", 1});
  back.launched = launched;
  back.LaunchedProcess(1, v1::LaunchEvent::KIND_STARTED);
  cluster.Settle();

  CHECK(cluster.Running() == 3);
  CHECK(std::ranges::any_of(cluster.at({"worker", 2}).commands,
                            [](const v1::Command& one) { return one.has_stop_launch(); }));
  cluster.Ends(2, 0, SIGTERM, true);
  CHECK(cluster.Running() == 2);
  CHECK(cluster.job().restarts() == 0);
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

  v1::DaemonMessage message;
  v1::LaunchEvent& event = *message.mutable_launched();
  event.set_job_id(cluster.job().id());
  event.set_launch(cluster.Task(1).launch());
  *event.mutable_task() = cluster.Task(1).task();
  event.set_kind(kProcessExited);
  event.set_how("exit code 3");
  event.set_exit_code(3);
  event.set_final(true);
  cluster.at(FromProto(cluster.Task(1).worker())).Say(message);
  cluster.Settle();
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
    FakeDaemon& daemon = cluster.Join({"worker", worker});
    daemon.launched = launch;
    daemon.LaunchedProcess(static_cast<std::uint32_t>(worker), v1::LaunchEvent::KIND_STARTED);
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

  FakeDaemon& daemon = cluster.Join({"worker", 0});
  daemon.launched = launched;
  daemon.LaunchedProcess(0, v1::LaunchEvent::KIND_STARTED);
  cluster.Settle();
  const auto stops = std::ranges::count_if(
      daemon.commands, [](const v1::Command& command) { return command.has_stop_launch(); });
  CHECK(stops > 0);
  cluster.Ends(0, 0);

  CHECK(cluster.job().state() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().error().message().find("worker:1 (on worker:1 of host) ended with exit code "
                                             "3: it broke, and fewer than 2 are left") == 0);
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

  FakeDaemon& daemon = cluster.Join({"worker", 0});
  daemon.launched = launched;
  daemon.LaunchedProcess(0, v1::LaunchEvent::KIND_STARTED);
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
    FakeDaemon& daemon = cluster.Join({"worker", i});
    daemon.launched = launched[i];
    const auto place = static_cast<std::uint32_t>(i);
    daemon.LaunchedProcess(place, v1::LaunchEvent::KIND_STARTED);
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
