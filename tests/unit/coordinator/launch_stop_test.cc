// A launched job that is stopped, of either kind: what time its processes have to end, whatever
// becomes of the coordinator and of connections meanwhile. And those of workers taken out.
#include <csignal>
#include <map>
#include <vector>

#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {
namespace {

constexpr Millis kLongGrace{300'000};

// Two processes run, one on each worker.
class Stopping : public Cluster {
 public:
  explicit Stopping(bool elastic) {
    JoinAll(0, 2);
    v1::JobSpec spec;
    spec.set_name("train");
    if (elastic) spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
    spec.mutable_strategy()->set_workers(2);
    spec.mutable_strategy()->set_max_workers(2);
    spec.mutable_launch()->set_command("train");
    spec.mutable_launch()->set_elastic(elastic);
    REQUIRE(Submit(spec).ok());
    REQUIRE(State("train") == v1::JOB_STATE_RUNNING);
    for (const int i : {0, 1}) launched[i] = at({"worker", i}).launched;
  }
  // And the processes are at it for some time.
  void Stop() {
    any("train").Stop(kLongGrace);
    Pass(Millis(10'000));
  }
  // The same worker, and it tells what it has.
  FakeDaemon& Back(int worker, bool tells = true) {
    return Cluster::Back(worker, launched[worker], tells);
  }
  void EndAsked(int worker) {
    at({"worker", worker})
        .LaunchedProcess(static_cast<std::uint32_t>(worker), v1::LaunchEvent::KIND_EXITED, 0,
                         SIGTERM, /*asked=*/true);
  }
  // How it was asked to end what it runs.
  static std::vector<v1::StopLaunch> Asked(const FakeDaemon& worker) {
    std::vector<v1::StopLaunch> stops;
    for (const v1::Command& one : worker.commands) {
      if (one.has_stop_launch()) stops.push_back(one.stop_launch());
    }
    return stops;
  }

  std::map<int, v1::StartLaunch> launched;
};

TEST_CASE("A stop's grace outlives a restart of the coordinator, before it or after",
          "[coordinator][launch][elastic]") {
  Stopping cluster(/*elastic=*/GENERATE(true, false));
  const bool before = GENERATE(true, false);
  if (before) cluster.Stop();
  cluster.RestartCoordinator();
  if (!before) cluster.Stop();
  CHECK(cluster.State("train") == v1::JOB_STATE_STOPPING);

  for (const int i : {0, 1}) {
    const std::vector<v1::StopLaunch> asked = Stopping::Asked(cluster.Back(i));
    REQUIRE(asked.size() == 1);
    CHECK(asked[0].launch() == cluster.launched[i].launch());
    CHECK(asked[0].grace_ms() > 280'000);
    CHECK(asked[0].grace_ms() <= 290'000);
    CHECK_FALSE(asked[0].forget());
  }
  cluster.Pass(Millis(60'000));
  CHECK(cluster.State("train") == v1::JOB_STATE_STOPPING);
  cluster.EndAsked(0);
  CHECK(cluster.State("train") == v1::JOB_STATE_STOPPING);
  cluster.EndAsked(1);
  CHECK(cluster.State("train") == v1::JOB_STATE_CANCELLED);
  CHECK(cluster.any("train").record().job().message() ==
        "stopped as asked; its processes have ended");
}

TEST_CASE("A stop with a longer grace gives processes that are asked to end already its time",
          "[coordinator][launch][elastic]") {
  Stopping cluster(/*elastic=*/GENERATE(true, false));
  const bool failed = GENERATE(true, false);
  if (failed) {
    cluster.at({"worker", 0}).LaunchedProcess(0, v1::LaunchEvent::KIND_EXITED, 3);
    cluster.Settle();
  } else {
    cluster.any("train").Stop(Millis(5'000));
  }
  cluster.Pass(Millis(2'000));
  REQUIRE(Stopping::Asked(cluster.at({"worker", 1})).size() == 1);

  cluster.any("train").Stop(kLongGrace);
  cluster.Pass(Millis(60'000));

  CHECK(cluster.State("train") == v1::JOB_STATE_STOPPING);
  const std::vector<v1::StopLaunch> asked = Stopping::Asked(cluster.at({"worker", 1}));
  REQUIRE(asked.size() == 2);
  CHECK(asked[1].grace_ms() == kLongGrace.count());
  CHECK_FALSE(asked[1].forget());
  if (!failed) cluster.EndAsked(0);
  cluster.EndAsked(1);
  CHECK(cluster.State("train") == v1::JOB_STATE_CANCELLED);
}

TEST_CASE("A grace that is over when a worker is back leaves processes no time",
          "[coordinator][launch][elastic]") {
  Stopping cluster(/*elastic=*/GENERATE(true, false));
  cluster.any("train").Stop(Millis(5'000));
  cluster.Settle();
  cluster.RestartCoordinator();
  cluster.Pass(Millis(6'000));

  const std::vector<v1::StopLaunch> asked = Stopping::Asked(cluster.Back(0));

  REQUIRE(asked.size() == 1);
  CHECK(asked[0].grace_ms() == 0);
}

TEST_CASE("A stopped job whose workers do not come back to another coordinator ends without them",
          "[coordinator][launch][elastic]") {
  Stopping cluster(/*elastic=*/GENERATE(true, false));
  cluster.Stop();
  cluster.RestartCoordinator();
  // Another process, which has nothing to tell.
  (void)cluster.Join({"worker", 0}, "boot-2");
  CHECK(cluster.State("train") == v1::JOB_STATE_STOPPING);

  cluster.Pass(Millis(25'000));

  CHECK(cluster.State("train") == v1::JOB_STATE_CANCELLED);
}

TEST_CASE("A worker that connects again while its job is stopped keeps the grace of the stop",
          "[coordinator][launch][elastic]") {
  Stopping cluster(/*elastic=*/GENERATE(true, false));
  cluster.Stop();

  const std::vector<v1::StopLaunch> asked = Stopping::Asked(cluster.Back(1, /*tells=*/false));

  REQUIRE(asked.size() == 1);
  CHECK(asked[0].grace_ms() > 280'000);
}

TEST_CASE("A host's clock that is set while a job is stopped changes nothing of its grace",
          "[coordinator][launch][elastic]") {
  Stopping cluster(/*elastic=*/GENERATE(true, false));
  cluster.Stop();
  cluster.time.SetWallBy(GENERATE(Millis(-1'800'000), Millis(1'800'000)));

  const std::vector<v1::StopLaunch> asked = Stopping::Asked(cluster.Back(1, /*tells=*/false));

  REQUIRE(asked.size() == 1);
  CHECK(asked[0].grace_ms() > 280'000);
  CHECK(asked[0].grace_ms() <= 290'000);
}

TEST_CASE("A worker that was taken out while it was away is told to end what it still runs",
          "[coordinator][launch][elastic]") {
  Stopping cluster(/*elastic=*/GENERATE(true, false));
  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(5'000));
  bool taken_out = false;
  cluster.core->TakeOut({"worker", 1}, "", [&](const auto& reply) { taken_out = reply.ok(); });
  cluster.Settle();
  REQUIRE(taken_out);

  const std::vector<v1::StopLaunch> asked = Stopping::Asked(cluster.Back(1));

  REQUIRE(asked.size() == 1);
  CHECK(asked[0].launch() == cluster.launched[1].launch());
  CHECK(asked[0].grace_ms() == 0);
  CHECK(asked[0].forget());
}

}  // namespace
}  // namespace muster::coordinator::testing
