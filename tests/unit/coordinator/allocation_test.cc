// Which workers a model's job gets.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using Indices = std::vector<int>;

Coordinator::Options ManyJobs() {
  Coordinator::Options options;
  options.max_running_jobs = 10;
  return options;
}

v1::JobSpec WithWorkers(std::uint32_t workers, std::uint32_t most = 0,
                        const std::string& name = "job") {
  v1::JobSpec spec = Cluster::Spec(name);
  spec.mutable_strategy()->set_workers(workers);
  spec.mutable_strategy()->set_max_workers(most);
  return spec;
}

// Workers of the test's cluster that have an executor of the job, or were asked for one.
Indices WorkersOf(Cluster& cluster, const std::string& name = "job") {
  Indices indices;
  for (const auto& [task, daemon] : cluster.daemons) {
    if (task.type == "worker" && cluster.any(name).Occupies(task)) indices.push_back(task.index);
  }
  return indices;
}

bool IsAskedToStop(Cluster& cluster, int worker) {
  return std::ranges::any_of(
      cluster.at({"worker", worker}).commands,
      [](const v1::Command& command) { return command.has_stop_executor(); });
}

TEST_CASE("Model jobs that say how many workers they want get the least busy ones",
          "[coordinator][unit]") {
  Cluster cluster(ManyJobs());
  cluster.JoinAll(1, 4);
  REQUIRE(cluster.Submit(WithWorkers(2, 0, "job")).ok());
  REQUIRE(cluster.Submit(WithWorkers(2, 0, "other")).ok());
  REQUIRE(cluster.Submit(WithWorkers(1, 3, "third")).ok());
  REQUIRE(cluster.Submit(Cluster::Spec("all")).ok());
  CHECK(WorkersOf(cluster, "job") == Indices{0, 1});
  CHECK(WorkersOf(cluster, "other") == Indices{2, 3});
  CHECK(WorkersOf(cluster, "third") == Indices{0, 1, 2});
  CHECK(WorkersOf(cluster, "all") == Indices{0, 1, 2, 3});

  REQUIRE(cluster.Schedule(1, 10).ok());
  CHECK(cluster.at({"worker", 2}).given.empty());
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 10);
}

TEST_CASE("Jobs that run on one worker do not share it while others have none",
          "[coordinator][unit]") {
  Cluster cluster(ManyJobs());
  cluster.JoinAll(0, 2);
  REQUIRE(cluster.Submit(Cluster::WithoutServers("job")).ok());
  REQUIRE(cluster.Submit(Cluster::WithoutServers("other")).ok());
  CHECK(WorkersOf(cluster, "job") == Indices{0});
  CHECK(WorkersOf(cluster, "other") == Indices{1});
}

TEST_CASE("A model's job begins with as many workers as it wants, and goes on with fewer",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(WithWorkers(2)).ok());
  CHECK(cluster.State() == v1::JOB_STATE_PENDING);
  CHECK(cluster.job().record().job().message() == "waiting for 1 more worker (1 of 2 is there)");
  (void)cluster.Join({"worker", 1});
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);

  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(10'000));
  REQUIRE(cluster.Schedule(1, 4).ok());
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 4);
  // Its parameter server has lost everything: it begins anew, with the one that is there.
  cluster.Kill({"ps", 0});
  (void)cluster.Join({"ps", 0}, "boot-2");
  cluster.Pass(Millis(1'000));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("Another worker takes a lost one's place, and one that comes back late lets its go",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 3);
  REQUIRE(cluster.Submit(WithWorkers(2)).ok());
  REQUIRE(WorkersOf(cluster) == Indices{0, 1});
  cluster.Kill({"worker", 0});
  cluster.Pass(Millis(10'000));
  CHECK(cluster.at({"worker", 2}).start.program().job_id() == cluster.job().id());

  (void)cluster.Join({"worker", 0});
  CHECK(WorkersOf(cluster) == Indices{1, 2});
  CHECK(IsAskedToStop(cluster, 0));
  CHECK_FALSE(IsAskedToStop(cluster, 2));
  REQUIRE(cluster.Schedule(1, 6).ok());
  CHECK(cluster.at({"worker", 0}).given.empty());
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 6);
}

}  // namespace
}  // namespace muster::coordinator
