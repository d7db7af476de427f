// Processes of a command as a job: where they run, what they are told, what their ends mean.
#include <algorithm>
#include <set>

#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {
namespace {

constexpr auto kExited = v1::LaunchEvent::KIND_EXITED;

v1::JobSpec LaunchSpec(std::uint32_t workers = 2, std::uint32_t most = 0,
                       const std::string& name = "train") {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_strategy()->set_workers(workers);
  spec.mutable_strategy()->set_max_workers(most);
  spec.mutable_launch()->set_command("python3");
  spec.mutable_launch()->add_arguments("train.py");
  return spec;
}

v1::JobSpec Restarting(v1::RestartPolicy policy, std::uint32_t most = 0) {
  v1::JobSpec spec = LaunchSpec();
  spec.mutable_launch()->set_restart(policy);
  spec.mutable_launch()->set_max_restarts(most);
  return spec;
}

class LaunchCluster : public Cluster {
 public:
  using Cluster::Cluster;
  const v1::Job& job(const std::string& name = "train") { return any(name).record().job(); }
  v1::JobState State(const std::string& name = "train") { return job(name).state(); }
  // What the process of this rank was told when it was started last.
  std::map<std::string, std::string> Environment(std::uint32_t rank) {
    for (const auto& [task, daemon] : daemons) {
      if (daemon->launched.launch() != job().launch().launch()) continue;
      for (const v1::LaunchProcess& process : daemon->launched.processes()) {
        if (process.task().index() == rank) {
          return {process.environment().begin(), process.environment().end()};
        }
      }
    }
    return {};
  }
  void Run(const v1::JobSpec& spec) {
    REQUIRE(Submit(spec).ok());
    REQUIRE(State(spec.name()) == v1::JOB_STATE_RUNNING);
  }
  // As a worker that was asked to stop the launch does.
  void EndAsked(int worker, std::uint32_t rank) {
    at({"worker", worker}).LaunchedProcess(rank, kExited, 0, 15, true, 100);
  }
  int Stops(int worker) {
    const auto& commands = at({"worker", worker}).commands;
    return static_cast<int>(std::ranges::count_if(
        commands, [](const v1::Command& one) { return one.has_stop_launch(); }));
  }
};

TEST_CASE("A launched command's processes are told their places when all addresses are known",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  (void)cluster.Join({"worker", 0}, "boot-1", "east");
  (void)cluster.Join({"worker", 1}, "boot-1", "west");
  (void)cluster.Join({"worker", 2}, "boot-1", "west");
  v1::JobSpec spec = LaunchSpec(3);
  spec.mutable_launch()->set_processes_per_worker(2);
  cluster.Run(spec);

  std::set<std::string> addresses;
  const std::vector<std::pair<std::string, std::string>> local = {
      {"0", "2"}, {"1", "2"}, {"0", "4"}, {"1", "4"}, {"2", "4"}, {"3", "4"}};
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    auto environment = cluster.Environment(rank);
    CAPTURE(rank, environment["TF_CONFIG"]);
    CHECK(environment["RANK"] == std::to_string(rank));
    CHECK(environment["WORLD_SIZE"] == "6");
    CHECK(environment["LOCAL_RANK"] == local[rank].first);
    CHECK(environment["LOCAL_WORLD_SIZE"] == local[rank].second);
    CHECK(environment["MASTER_ADDR"] == "127.0.0.1");
    CHECK(environment["MASTER_PORT"] == cluster.Environment(0)["MASTER_PORT"]);
    const v1::LaunchedTask& task = cluster.job().launch().tasks(static_cast<int>(rank));
    addresses.insert(task.address());
    CHECK(environment["TF_CONFIG"].find("\"" + task.address() + "\"") != std::string::npos);
    CHECK(task.state() == "running");
    CHECK(task.pid() == 9'000 + rank);
  }
  CHECK(addresses.size() == 6);
  CHECK_FALSE(addresses.contains("127.0.0.1:" + cluster.Environment(0)["MASTER_PORT"]));

  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
    cluster.at({"worker", static_cast<int>(rank / 2)}).LaunchedProcess(rank, kExited);
  }
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(cluster.job().message() == "done: 6 processes ended with exit code 0");
}

TEST_CASE("A dry run says whom the job would wait for", "[coordinator][launch]") {
  Coordinator::Options options;
  options.max_running_jobs = 1;
  LaunchCluster cluster(options);
  cluster.JoinAll(0, 3);
  const auto waits_for = [&](const v1::JobSpec& spec) {
    const auto reply = cluster.Submit(spec, /*dry_run=*/true);
    REQUIRE(reply.ok());
    CHECK(reply->problems().empty());
    return reply->waits_for();
  };

  CHECK(waits_for(LaunchSpec(3)).empty());
  CHECK(waits_for(LaunchSpec(9)) == "6 more workers (3 of 9 are there)");
  cluster.Run(LaunchSpec(1));
  CHECK(waits_for(LaunchSpec(2, 0, "next")) == "another job's end (max-jobs is 1)");
  CHECK(cluster.core->List().jobs_size() == 1);
}

TEST_CASE("A launched command takes what is there between its least and its most workers",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(LaunchSpec(1, 2));
  CHECK(cluster.job().launch().tasks_size() == 2);
  REQUIRE(cluster.Submit(LaunchSpec(4, 5, "more")).ok());
  CHECK(cluster.State("more") == v1::JOB_STATE_PENDING);
  CHECK(cluster.job("more").message() == "waiting for 1 more worker (3 of 4 are there)");
  (void)cluster.Join({"worker", 3});
  CHECK(cluster.State("more") == v1::JOB_STATE_RUNNING);
  // The least busy of those that are there.
  cluster.Run(LaunchSpec(1, 1, "one"));
  CHECK(cluster.job("one").launch().tasks(0).worker().index() == 2);
}

TEST_CASE("The first process that fails by itself is the cause, whichever is heard of first",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(LaunchSpec(3));
  // Rank 2 failed of what rank 1 did.
  cluster.at({"worker", 2}).LaunchedProcess(2, kExited, 1, 0, false, 2'000);
  CHECK(cluster.Stops(0) == 1);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  cluster.at({"worker", 1}).LaunchedProcess(1, kExited, 0, 11, false, 1'000);
  cluster.EndAsked(0, 0);
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().error().message().find(
            "worker:1 (rank 1 of 3, on worker:1 of host) ended by signal 11: it broke") == 0);
  CHECK(cluster.job().error().code() == static_cast<int>(StatusCode::kInternal));
  CHECK(cluster.EventOf("PROGRAM_ENDED", "train")->log_lines(0) == "it broke");
}

TEST_CASE("Processes begin anew as often as the policy allows, each time at other addresses",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(Restarting(v1::RESTART_POLICY_ON_FAILURE, 2));
  std::set<std::string> meetings;
  for (std::uint32_t restarts = 0; restarts < 3; ++restarts) {
    CAPTURE(restarts);
    REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);
    CHECK(cluster.Environment(0)["MUSTER_RESTARTS"] == std::to_string(restarts));
    CHECK(meetings.insert(cluster.Environment(0)["MASTER_PORT"]).second);
    cluster.at({"worker", 1}).LaunchedProcess(1, kExited, 9);
    cluster.EndAsked(0, 0);
    cluster.Pass(Millis(5'000));
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().restarts() == 2);
}

TEST_CASE("The policy of exit codes takes a program's own word for it", "[coordinator][launch]") {
  const auto after = [](std::uint32_t code, std::uint32_t signal) {
    LaunchCluster cluster;
    cluster.JoinAll(0, 2);
    cluster.Run(Restarting(v1::RESTART_POLICY_EXIT_CODE));
    cluster.at({"worker", 1}).LaunchedProcess(1, kExited, code, signal);
    cluster.EndAsked(0, 0);
    cluster.Pass(Millis(2'000));
    return cluster.State();
  };
  CHECK(after(1, 0) == v1::JOB_STATE_FAILED);
  CHECK(after(127, 0) == v1::JOB_STATE_FAILED);
  CHECK(after(137, 0) == v1::JOB_STATE_RUNNING);
  CHECK(after(0, 9) == v1::JOB_STATE_RUNNING);
}

// As a process says that forms a group.
v1::CollectiveWait Forms(std::uint32_t rank) {
  v1::CollectiveWait wait;
  wait.set_job_id("train-1");
  wait.mutable_task()->set_type("worker");
  wait.mutable_task()->set_index(rank);
  wait.set_generation(1);
  wait.set_call("forming of the group");
  wait.set_lasts_ms(1'000);
  return wait;
}

TEST_CASE("One that ends well while all others wait for it to join their group is their failure",
          "[coordinator][launch]") {
  const auto policy = GENERATE(v1::RESTART_POLICY_NEVER, v1::RESTART_POLICY_ON_FAILURE,
                               v1::RESTART_POLICY_EXIT_CODE);
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(Restarting(policy));
  REQUIRE(cluster.job().id() == Forms(0).job_id());
  cluster.at({"worker", 1}).LaunchedProcess(1, kExited);
  cluster.Pass(Millis(30'000));
  CHECK(cluster.Stops(0) == 0);
  cluster.at({"worker", 0}).waits = {Forms(0)};
  cluster.Pass(Millis(5'000));
  CHECK(cluster.Stops(0) == 1);
  cluster.EndAsked(0, 0);
  cluster.at({"worker", 0}).waits.clear();
  cluster.Pass(Millis(2'000));
  CAPTURE(policy);
  if (policy == v1::RESTART_POLICY_ON_FAILURE) {
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
    CHECK(cluster.job().restarts() == 1);
    return;
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().error().message().find(
            "worker:1 (rank 1 of 2, on worker:1 of host) ended with exit code 0 while the others "
            "wait for it to join their group") == 0);
}

TEST_CASE("Who has ended well is no failure as long as the others may go on without it",
          "[coordinator][launch]") {
  v1::CollectiveWait wait = Forms(0);
  SECTION("one of them does not wait") {}
  SECTION("it waits up to a limit") { wait.set_limit_ms(600'000); }
  SECTION("it waits in a call of a group") { wait.set_operation(7); }
  SECTION("it looks for other workers, as elastic ones do") { wait.set_generation(0); }
  SECTION("it is another job's") { wait.set_job_id("train-2"); }
  const bool alone = wait.SerializeAsString() != Forms(0).SerializeAsString();
  LaunchCluster cluster;
  cluster.JoinAll(0, alone ? 2 : 3);
  cluster.Run(LaunchSpec(alone ? 2 : 3));
  cluster.at({"worker", 0}).waits = {wait};
  cluster.at({"worker", 1}).LaunchedProcess(1, kExited);
  cluster.Pass(Millis(30'000));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Stops(0) == 0);
}

TEST_CASE("A lost worker is the cause before what its loss did to others",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(LaunchSpec());
  cluster.at({"worker", 0}).LaunchedProcess(0, kExited, 1);
  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(2'000));
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().error().code() == static_cast<int>(StatusCode::kUnavailable));
  CHECK(cluster.job().error().message().find("worker:1 (rank 1 of 2, on worker:1 of host) is lost "
                                             "with worker:1: its connection was reset") == 0);
}

TEST_CASE("A worker that comes back with processes of an earlier launch is told to end them",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(Restarting(v1::RESTART_POLICY_ON_FAILURE));
  const v1::StartLaunch first = cluster.at({"worker", 1}).launched;
  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(1'000));
  cluster.EndAsked(0, 0);
  cluster.Pass(Millis(2'000));
  REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().launch().tasks(1).worker().index() == 2);

  FakeDaemon& back = cluster.Back(1, first);
  REQUIRE(cluster.Stops(1) == 1);
  CHECK(back.commands.back().stop_launch().launch() == first.launch());
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("Processes that are too many to be told of each other are refused, not started",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 4);
  // On all workers that are there: how many these are the job does not say.
  v1::JobSpec spec = LaunchSpec(0);
  spec.mutable_launch()->set_processes_per_worker(700);
  REQUIRE(cluster.Submit(spec).ok());
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().reason() == "REFUSED");
  CHECK(cluster.job().error().message().find("2800 processes, 700 on each worker, are more") == 0);
  CHECK(cluster.at({"worker", 3}).launched.processes().empty());
  CHECK(cluster.at({"worker", 3}).commands.back().stop_launch().forget());
}

TEST_CASE("A stop asks the processes to end within its grace", "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(LaunchSpec());
  cluster.any("train").Stop(Millis(5'000));
  cluster.Settle();
  CHECK(cluster.State() == v1::JOB_STATE_STOPPING);
  CHECK(cluster.at({"worker", 1}).commands.back().stop_launch().grace_ms() == 5'000);
  cluster.EndAsked(0, 0);
  CHECK(cluster.State() == v1::JOB_STATE_STOPPING);
  cluster.EndAsked(1, 1);
  CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
  CHECK(cluster.at({"worker", 0}).commands.back().stop_launch().forget());
}

TEST_CASE("A worker that never says that it has stopped does not keep a job from its end",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(LaunchSpec());
  cluster.at({"worker", 0}).LaunchedProcess(0, kExited, 4);
  cluster.Pass(Millis(30'000));
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().error().message().find("worker:0 (rank 0") == 0);
}

TEST_CASE("A coordinator that is started again finds the processes where they were",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(LaunchSpec());
  const v1::StartLaunch east = cluster.at({"worker", 0}).launched;
  const v1::StartLaunch west = cluster.at({"worker", 1}).launched;
  cluster.RestartCoordinator();
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  cluster.Join({"worker", 0}).launched = east;
  cluster.at({"worker", 0}).LaunchedProcess(0, v1::LaunchEvent::KIND_STARTED);
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  cluster.Join({"worker", 1}).launched = west;

  SECTION("and they go on") {
    cluster.at({"worker", 1}).LaunchedProcess(1, v1::LaunchEvent::KIND_STARTED);
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
    CHECK(cluster.Stops(0) == 0);
    cluster.at({"worker", 0}).LaunchedProcess(0, kExited);
    cluster.at({"worker", 1}).LaunchedProcess(1, kExited);
    CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  }
  SECTION("or learns how they ended meanwhile") {
    cluster.at({"worker", 1}).LaunchedProcess(1, kExited, 7);
    CHECK(cluster.Stops(0) == 1);
    cluster.EndAsked(0, 0);
    CHECK(cluster.State() == v1::JOB_STATE_FAILED);
    CHECK(cluster.job().error().message().find("ended with exit code 7") != std::string::npos);
  }
  SECTION("or that a worker has come back without them") {
    cluster.Pass(Millis(25'000));
    cluster.EndAsked(0, 0);
    CHECK(cluster.State() == v1::JOB_STATE_FAILED);
    CHECK(cluster.job().error().message().find("it has not come back with its processes") !=
          std::string::npos);
  }
}

TEST_CASE("Processes that went with the whole cluster begin anew as soon as workers are back",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(Restarting(v1::RESTART_POLICY_ON_FAILURE, 1));
  cluster.RestartCoordinator();
  cluster.JoinAll(0, 2, "boot-2");

  cluster.Pass(Millis(5'000));

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().restarts() == 1);
}

TEST_CASE("A process that has ended well is no loss to a coordinator that is started again",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(LaunchSpec());
  const v1::StartLaunch launched = cluster.at({"worker", 1}).launched;
  cluster.at({"worker", 0}).LaunchedProcess(0, kExited);
  // Its worker is another process since.
  cluster.Kill({"worker", 0});
  cluster.RestartCoordinator();
  (void)cluster.Join({"worker", 0}, "boot-2");
  cluster.Join({"worker", 1}).launched = launched;
  cluster.at({"worker", 1}).LaunchedProcess(1, v1::LaunchEvent::KIND_STARTED);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);

  cluster.at({"worker", 1}).LaunchedProcess(1, kExited);

  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
}

TEST_CASE("Processes go on through two restarts of the coordinator, one after the other",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(LaunchSpec());
  std::map<int, v1::StartLaunch> launched;
  for (const int i : {0, 1}) launched[i] = cluster.at({"worker", i}).launched;
  cluster.RestartCoordinator();
  cluster.Settle();
  cluster.RestartCoordinator();
  for (const int i : {0, 1}) {
    cluster.Join({"worker", i}).launched = launched[i];
    cluster.at({"worker", i})
        .LaunchedProcess(static_cast<std::uint32_t>(i), v1::LaunchEvent::KIND_STARTED);
  }

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().launch().launch() == launched[0].launch());
  CHECK(cluster.Stops(0) == 0);
}

TEST_CASE("A launch that a coordinator before this one has begun begins anew when it fails",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(Restarting(v1::RESTART_POLICY_ON_FAILURE, 1));
  std::map<int, v1::StartLaunch> launched;
  for (const int i : {0, 1}) launched[i] = cluster.at({"worker", i}).launched;
  cluster.RestartCoordinator();
  for (const int i : {0, 1}) {
    cluster.Join({"worker", i}).launched = launched[i];
    cluster.at({"worker", i})
        .LaunchedProcess(static_cast<std::uint32_t>(i), v1::LaunchEvent::KIND_STARTED);
  }
  REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);

  cluster.at({"worker", 1}).LaunchedProcess(1, kExited, 9);
  cluster.EndAsked(0, 0);
  cluster.Pass(Millis(2'000));

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().restarts() == 1);
  CHECK(cluster.job().launch().launch() != launched[0].launch());
}

TEST_CASE("A lost worker that is back while the others end is told to end its processes, too",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(Restarting(v1::RESTART_POLICY_ON_FAILURE));
  const v1::StartLaunch launched = cluster.at({"worker", 1}).launched;
  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(1'000));
  REQUIRE(cluster.Stops(0) == 1);

  FakeDaemon& back = cluster.Back(1, launched);

  REQUIRE(cluster.Stops(1) == 1);
  CHECK(back.commands.back().stop_launch().launch() == launched.launch());
}

TEST_CASE("A worker that comes with processes of a launch that did not come about ends them",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.at({"worker", 1}).needs_files = {v1::Command::kStartLaunch};
  REQUIRE(cluster.Submit(LaunchSpec()).ok());
  REQUIRE(cluster.State() == v1::JOB_STATE_STARTING);
  const v1::StartLaunch begun = cluster.at({"worker", 0}).launched;
  cluster.RestartCoordinator();

  // Another launch has to begin, and may do without this worker.
  FakeDaemon& back = cluster.Back(0, begun);

  REQUIRE(cluster.Stops(0) == 1);
  CHECK(back.commands.back().stop_launch().launch() == begun.launch());
}

TEST_CASE("A worker that leaves is waited for, and what it ended is no failure",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(Restarting(v1::RESTART_POLICY_ON_FAILURE, 1));
  v1::DaemonMessage draining;
  draining.mutable_draining()->set_reason("SIGTERM");
  cluster.at({"worker", 1}).Say(draining);
  cluster.Settle();
  CHECK_FALSE(cluster.at({"worker", 1}).released);
  cluster.at({"worker", 1}).LaunchedProcess(1, kExited, 42, 0, true);
  cluster.EndAsked(0, 0);
  CHECK(cluster.at({"worker", 1}).released);
  cluster.Pass(Millis(2'000));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().restarts() == 0);
  CHECK(cluster.job().launch().tasks(1).worker().index() == 2);
}

TEST_CASE("A worker that is asked to end while a launch is readied leaves when that is given up",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  cluster.at({"worker", 1}).needs_files = {v1::Command::kPrepareLaunch};
  REQUIRE(cluster.Submit(LaunchSpec()).ok());
  v1::DaemonMessage draining;
  draining.mutable_draining()->set_reason("SIGTERM");
  cluster.at({"worker", 0}).Say(draining);
  cluster.Settle();
  REQUIRE_FALSE(cluster.at({"worker", 0}).released);

  cluster.at({"worker", 1}).refuse[v1::Command::kPrepareLaunch] = Unavailable("it is draining");
  cluster.at({"worker", 1}).FilesCome();
  cluster.Settle();

  CHECK(cluster.at({"worker", 0}).released);
}

TEST_CASE("A worker that cannot run the command is left out while others can",
          "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 2);
  (void)cluster.Join({"worker", 2}, "boot-1", "full", {},
                     {{v1::Command::kPrepareLaunch, ResourceExhausted("the disk is full")}});
  REQUIRE(cluster.Submit(LaunchSpec(2, 3)).ok());
  cluster.Pass(Millis(900));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().launch().tasks_size() == 2);
  CHECK(cluster.EventOf("WORKER_UNFIT", "train")->task().index() == 2);
}

TEST_CASE("A worker that is there and cannot start a process for now is left out, and asked again",
          "[coordinator][launch]") {
  // No process is left of its limit; its disk does not answer.
  const Status why = GENERATE(Unavailable("fork: Resource temporarily unavailable"),
                              MakeStatus(StatusCode::kUnknown, "Input/output error"));
  LaunchCluster cluster;
  (void)cluster.Join({"worker", 0}, "boot-1", "full", {}, {{v1::Command::kStartLaunch, why}});
  (void)cluster.Join({"worker", 1});
  REQUIRE(cluster.Submit(LaunchSpec(1, 1)).ok());
  cluster.Pass(Millis(900));

  REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().launch().tasks(0).worker().index() == 1);
  const auto unfit = cluster.EventOf("WORKER_UNFIT", "train");
  REQUIRE(unfit.has_value());
  CHECK(unfit->message().find(Message(why)) != std::string::npos);

  // Alone it is asked until it can.
  REQUIRE(cluster.Submit(LaunchSpec(2, 2, "both")).ok());
  cluster.Pass(Millis(5'000));
  CHECK(cluster.job("both").reason() == "NO_FIT_WORKER");
  CHECK(cluster.EventOf("WORKER_UNFIT", "both").has_value());
  cluster.at({"worker", 0}).refuse.clear();
  cluster.Pass(Millis(60'000));
  CHECK(cluster.State("both") == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A command that no host has is refused at once", "[coordinator][launch]") {
  LaunchCluster cluster;
  cluster.JoinAll(0, 1);
  cluster.at({"worker", 0}).check.add_problems("no command \"python3\" in its PATH");
  const auto refused = cluster.Submit(LaunchSpec(1));
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(refused.status()).find("no command \"python3\"") != std::string::npos);
}

}  // namespace
}  // namespace muster::coordinator::testing
