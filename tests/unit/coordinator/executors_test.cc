// Executors that do not start, do not stay, or read other data; closures that end them.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

const TaskId kOne{"worker", 0};
const TaskId kTwo{"worker", 1};
constexpr auto kStartCommand = v1::Command::kStartExecutor;

int TimesTold(Cluster& cluster, const std::string& reason) {
  const std::vector<std::string> reasons = cluster.Reasons();
  return static_cast<int>(std::count(reasons.begin(), reasons.end(), reason));
}

int StartsOf(const FakeDaemon& daemon) {
  return static_cast<int>(
      std::count_if(daemon.commands.begin(), daemon.commands.end(),
                    [](const v1::Command& command) { return command.has_start_executor(); }));
}

TEST_CASE("A worker that cannot start an executor is left out, and tried again less and less",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  FakeDaemon& broken = cluster.at(kTwo);
  broken.refuse[kStartCommand] = ResourceExhausted("open /dev/null: Too many open files");
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  REQUIRE(cluster.Schedule(1, 10).ok());
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 10);
  const auto unfit = cluster.EventOf("WORKER_UNFIT");
  REQUIRE(unfit);
  CHECK(unfit->task().index() == 1);
  CHECK(unfit->fields().at("code") == "RESOURCE_EXHAUSTED");
  CHECK(unfit->message().find("Too many open files") != std::string::npos);

  cluster.Pass(Millis(60'000));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(TimesTold(cluster, "WORKER_UNFIT") == 1);  // told once
  const int tries = StartsOf(broken);
  CHECK(tries >= 4);
  CHECK(tries <= 8);

  broken.refuse.clear();
  cluster.Pass(Millis(61'000));
  CHECK(StartsOf(broken) == tries + 1);
  REQUIRE(cluster.Schedule(11, 12).ok());
  CHECK(broken.given.size() == 1);
}

TEST_CASE("When no worker can start an executor the job waits, says why, and goes on by itself",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  cluster.at(kOne).refuse[kStartCommand] = ResourceExhausted("the disk is full");
  cluster.at(kTwo).refuse[kStartCommand] = NotFound("data: /data/x.idx on host b: not there");
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.Pass(Millis(10'000));
  CHECK(cluster.State() == v1::JOB_STATE_STARTING);
  CHECK(cluster.job().record().job().reason() == "NO_FIT_WORKER");
  const std::string message = cluster.job().record().job().message();
  CHECK(message.find("worker:0: the disk is full") != std::string::npos);
  CHECK(message.find("worker:1: data: /data/x.idx on host b") != std::string::npos);

  cluster.at(kOne).refuse.clear();
  cluster.Pass(Millis(60'000));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().record().job().reason().empty());
}

TEST_CASE("A job fails with the user's error when every worker says it", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  cluster.at(kOne).refuse[kStartCommand] = InvalidArgument("no column \"x\"");
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);  // the other one can

  cluster.at(kTwo).refuse[kStartCommand] = InvalidArgument("no column \"x\"");
  cluster.at(kTwo).ExecutorExits("signal SIGKILL", /*from_outside=*/true);
  cluster.Pass(Millis(1'000));
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().record().job().error().code() == 3);
  CHECK(cluster.job().record().job().error().message().find("no column") != std::string::npos);
}

TEST_CASE("A data file that has changed fails the job at once, also a job without servers",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  v1::JobSpec spec = Cluster::Spec();
  const bool home = GENERATE(false, true);
  if (home) spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_ONE_DEVICE);
  if (home) cluster.checkpoints.steps.insert(4);
  const Status changed = DataLoss("data: /data/x.idx on host h: was changed after the job was");
  cluster.at(kOne).refuse[kStartCommand] = changed;
  REQUIRE(cluster.Submit(spec).ok());
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().record().job().error().code() == static_cast<int>(changed.code()));
  CHECK(cluster.job().record().job().error().message().find("/data/x.idx") != std::string::npos);
  CHECK_FALSE(cluster.EventOf("CHECKPOINT_REFUSED"));  // it is not the checkpoint's fault
}

TEST_CASE("Executors are told what the data files were when the job was checked",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  v1::DataFile& file = *cluster.at(kOne).data.add_training();
  file.set_path("/data/x.idx");
  file.set_size(100);
  file.set_mtime_ns(7);
  file.set_records(10);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.at(kOne).start.data().training_size() == 1);
  CHECK(cluster.at(kOne).start.data().training(0).mtime_ns() == 7);

  // A copy on another host has another time. After a restart they are known too.
  cluster.RestartCoordinator();
  (void)cluster.Join({"ps", 0});
  FakeDaemon& other = cluster.Join(kTwo, "boot-1", "another");
  REQUIRE(other.start.data().training_size() == 1);
  CHECK(other.start.data().training(0).size() == 100);
  CHECK(other.start.data().training(0).mtime_ns() == 0);
}

TEST_CASE("Hosts whose files differ are named before anything runs", "[coordinator][unit]") {
  Cluster cluster;
  (void)cluster.Join({"ps", 0});
  FakeDaemon& one = cluster.Join(kOne, "boot-1", "alpha");
  FakeDaemon& two = cluster.Join(kTwo, "boot-1", "beta");
  one.data.add_training()->set_path("/data/x.idx");
  two.data = one.data;
  two.data.mutable_training(0)->set_index_hash(1);
  const auto refused = cluster.Submit(Cluster::Spec());
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(refused.status()).find("alpha and beta have /data/x.idx") != std::string::npos);
}

TEST_CASE("A worker whose host is in trouble does not decide over a spec", "[coordinator][unit]") {
  Cluster cluster;
  (void)cluster.Join({"ps", 0});
  FakeDaemon& broken = cluster.Join(kOne, "boot-1", "alpha");
  (void)cluster.Join(kTwo, "boot-1", "beta");
  broken.refuse[v1::Command::kCheckJob] = ResourceExhausted("Too many open files");
  broken.refuse[v1::Command::kProbeData] = ResourceExhausted("Too many open files");
  CHECK(cluster.Submit(Cluster::Spec()).ok());
  CHECK(cluster.job().record().checked());

  // None can: then it is said.
  cluster.at(kTwo).refuse = broken.refuse;
  const auto refused = cluster.Submit(Cluster::Spec("second"));
  CHECK(refused.status().code() == StatusCode::kResourceExhausted);
  CHECK(Message(refused.status()).find("Too many open files") != std::string::npos);
}

TEST_CASE("Executors that are killed while they start are started again, ever more seldom",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  FakeDaemon& worker = cluster.at(kOne);
  worker.refuse[kStartCommand] = Unavailable("the executor ended before it was ready");
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  worker.plan = cluster.job().record().plan();
  for (int kill = 0; kill < 20; ++kill) {
    const std::size_t asked = worker.commands.size();
    worker.ExecutorExits("signal SIGKILL", /*from_outside=*/true);
    cluster.Pass(Millis(6'000));
    CHECK((worker.commands.size() > asked) == (kill < 5));
    cluster.Pass(Millis(61'000), Millis(250));
  }
  CHECK(cluster.State() == v1::JOB_STATE_STARTING);
  CHECK(cluster.job().record().job().reason() == "NO_FIT_WORKER");
  CHECK(TimesTold(cluster, "EXECUTOR_LOST") == 20);
  REQUIRE(cluster.EventOf("WORKER_UNFIT"));
  CHECK(cluster.EventOf("WORKER_UNFIT")->message().find("enough memory") != std::string::npos);
  worker.refuse.clear();
  cluster.Pass(Millis(61'000), Millis(250));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("Executors that crash on every worker before they are ready fail the job",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  for (const TaskId& task : {kOne, kTwo}) {
    cluster.at(task).refuse[kStartCommand] = Unavailable("the executor ended before it was ready");
  }
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  int crashes = 0;
  for (; crashes < 20 && cluster.State() != v1::JOB_STATE_FAILED; ++crashes) {
    FakeDaemon& worker = cluster.at(crashes % 2 == 0 ? kOne : kTwo);
    worker.plan = cluster.job().record().plan();
    worker.ExecutorExits("signal SIGILL");
    cluster.Pass(Millis(200));
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(crashes == 6);
  CHECK(cluster.job().record().job().error().message().find("signal SIGILL") != std::string::npos);
}

TEST_CASE("A job that always crashes fails within five crashes and names records and signal",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 50).ok());
  int crashes = 0;
  for (int round = 0; round < 20 && cluster.State() == v1::JOB_STATE_RUNNING; ++round) {
    for (const TaskId& task : {kOne, kTwo}) {
      FakeDaemon& worker = cluster.at(task);
      if (worker.given.empty() || cluster.State() != v1::JOB_STATE_RUNNING) continue;
      worker.ExecutorExits("signal SIGSEGV");
      cluster.Settle();
      ++crashes;
    }
    cluster.Pass(Millis(5'000));
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(crashes <= 5);
  const auto poison = cluster.EventOf("POISON_CLOSURE");
  REQUIRE(poison);
  CHECK(poison->fields().at("closure") == "1");
  CHECK(poison->fields().at("records") == "Its batch: record 1 of /data/x.idx");
  const std::string message = cluster.job().record().job().error().message();
  CHECK(message.find("by signal SIGSEGV") != std::string::npos);
  CHECK(message.find("record 1 of /data/x.idx") != std::string::npos);
}

// Hands back whatever the worker is given, for so long.
void HandBack(Cluster& cluster, const TaskId& task, Millis time) {
  for (Millis passed{0}; passed < time; passed += Millis(500)) {
    FakeDaemon& worker = cluster.at(task);
    while (!worker.given.empty()) {
      const testing::Given closure = worker.given.front();
      worker.given.pop_front();
      worker.Finish(closure, Unavailable("ps:0 does not answer"));
    }
    cluster.Pass(Millis(500));
  }
}

TEST_CASE("A closure that always comes back while others are done fails the job, and says so",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 600).ok());
  int handed_back = 0;
  for (int turn = 0; turn < 3'000 && cluster.State() == v1::JOB_STATE_RUNNING; ++turn) {
    FakeDaemon& worker = cluster.at(kOne);
    if (worker.given.empty()) {
      cluster.Pass(Millis(500));
      continue;
    }
    const testing::Given closure = worker.given.front();
    worker.given.pop_front();
    const bool bad = closure.closure().id() == 7;
    handed_back += bad ? 1 : 0;
    worker.Finish(closure, bad ? Unavailable("ps:0 does not answer") : Ok());
    cluster.Pass(Millis(bad ? 4'000 : 10));
  }

  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(handed_back >= 20);
  const v1::StatusProto& error = cluster.job().record().job().error();
  CHECK(error.message().find("closure 7 has come back ") != std::string::npos);
  CHECK(error.message().find("while 100 others were done") != std::string::npos);
  CHECK(error.message().find("from worker:0: ps:0 does not answer") != std::string::npos);
}

TEST_CASE("A worker that only hands closures back is asked less often, then gets a new executor",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 4).ok());
  HandBack(cluster, kOne, Millis(59'000));
  CHECK_FALSE(cluster.EventOf("EXECUTOR_RESTARTED"));
  CHECK(cluster.job().record().job().closures_rerun() < 100);  // 236, without a rest
  HandBack(cluster, kOne, Millis(6'000));
  const auto restarted = cluster.EventOf("EXECUTOR_RESTARTED");
  REQUIRE(restarted);
  CHECK(restarted->fields().at("why") == "ps:0 does not answer");
  FakeDaemon& worker = cluster.at(kOne);
  const auto stop =
      std::find_if(worker.commands.begin(), worker.commands.end(),
                   [](const v1::Command& command) { return command.has_stop_executor(); });
  REQUIRE(stop != worker.commands.end());
  CHECK(stop->stop_executor().view() == 1);
  CHECK(stop->stop_executor().epoch() == cluster.core->epoch().value());
  CHECK(StartsOf(worker) == 2);
  CHECK(cluster.View() == 1);  // nothing that was done is lost

  cluster.Pass(Millis(6'000));
  cluster.WorkAll();
  cluster.Pass(Millis(6'000));
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 4);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("Without servers, a home that only hands closures back sends the job to its checkpoint",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(0, 1);
  REQUIRE(cluster.Submit(Cluster::WithoutServers()).ok());
  REQUIRE(cluster.Schedule(1, 4).ok());
  HandBack(cluster, kOne, Millis(70'000));
  CHECK(cluster.EventOf("EXECUTOR_RESTARTED"));
  CHECK(cluster.View() == 2);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("Servers that still hold an older view's memory are asked again, but not for ever",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(2, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  constexpr auto kCreate = v1::Command::kCreateVariables;
  cluster.at({"ps", 0}).refuse[kCreate] = ResourceExhausted("needs 9 MiB, 1 MiB left");
  cluster.Kill({"ps", 1});
  cluster.Pass(Millis(1'000));
  (void)cluster.Join({"ps", 1}, "boot-2");
  cluster.Pass(Millis(20'000));
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  CHECK(cluster.job().record().job().reason() == "SERVERS_FULL");
  CHECK(TimesTold(cluster, "SERVERS_FULL") == 1);
  const bool in_time = GENERATE(true, false);
  if (in_time) cluster.at({"ps", 0}).refuse.clear();
  cluster.Pass(Millis(60'000));
  CHECK(cluster.State() == (in_time ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_FAILED));
}

TEST_CASE("A home executor that dies while its worker's stream is made anew ends the view",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(0, 1);
  REQUIRE(cluster.Submit(Cluster::WithoutServers()).ok());
  REQUIRE(cluster.Schedule(1, 6).ok());
  FakeDaemon& before = cluster.at(kOne);
  before.Finish(before.given[0]);
  const v1::JobPlan plan = before.plan;
  cluster.core->OnStreamEnded(before.session);

  // The daemon says what has happened as soon as it is attached again.
  FakeDaemon& after = cluster.Join(kOne);
  after.plan = plan;
  after.ExecutorExits("signal SIGKILL", /*from_outside=*/true);
  cluster.Settle();

  CHECK(cluster.View() == 2);
  CHECK(after.start.plan().view() == 2);
  CHECK(cluster.job().record().steps_done() == 0);
}

}  // namespace
}  // namespace muster::coordinator
