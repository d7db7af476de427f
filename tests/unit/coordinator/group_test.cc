// Jobs whose steps several workers make together: who is asked into which group, and what is lost
// with whom.
#include <algorithm>
#include <utility>

#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

const TaskId kLeader{"worker", 0};
const TaskId kMember{"worker", 1};
const TaskId kLastMember{"worker", 2};

v1::JobSpec TogetherSpec(std::uint32_t workers, std::uint32_t most = 0) {
  v1::JobSpec spec = Cluster::Spec();
  spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
  spec.mutable_strategy()->set_workers(workers);
  spec.mutable_strategy()->set_max_workers(most);
  // Each worker needs an example.
  spec.set_batch_size(std::max({workers, most, spec.batch_size()}));
  return spec;
}

// The tasks of the group that a daemon was asked into last, in rank order.
std::vector<std::string> GroupOf(const FakeDaemon& daemon) {
  std::vector<std::string> tasks;
  for (const v1::GroupMember& member : daemon.joined.members()) {
    tasks.push_back(fmt::format("{}:{}", member.task().type(), member.task().index()));
  }
  return tasks;
}
using Tasks = std::vector<std::string>;

// A job of two or three workers, in the midst of steps.
struct InStep {
  explicit InStep(std::uint32_t least = 1, std::uint32_t most = 3, int workers = 3) {
    cluster.JoinAll(0, workers);
    REQUIRE(cluster.Submit(TogetherSpec(least, most)).ok());
    REQUIRE(cluster.Schedule(1, 4).ok());
    cluster.WorkAll();
    REQUIRE(cluster.Save(4).ok());
    REQUIRE(cluster.Schedule(5, 9).ok());
  }
  std::uint64_t Generation(const TaskId& task) { return cluster.at(task).joined.generation(); }
  Cluster cluster;
};

TEST_CASE("Workers that make steps together form a group, and its first member has the closures",
          "[coordinator][unit]") {
  InStep running(2, 0, 3);
  Cluster& cluster = running.cluster;
  CHECK((GroupOf(cluster.at(kLeader)) == Tasks{"worker:0", "worker:1"}));
  CHECK((GroupOf(cluster.at(kMember)) == Tasks{"worker:0", "worker:1"}));
  CHECK(cluster.at(kLeader).joined.rank() == 0);
  CHECK(cluster.at(kMember).joined.rank() == 1);
  CHECK(cluster.at(kLastMember).start.plan().job_id().empty());
  CHECK_FALSE(cluster.at(kLeader).given.empty());
  CHECK(cluster.at(kMember).given.empty());
  CHECK_FALSE(cluster.at(kMember).start.joins());
  CHECK(cluster.EventOf("JOB_RUNNING")->message() ==
        "running from step 0 of 100 on 2 workers in step (multi_worker_mirrored) (view 1)");
  REQUIRE(cluster.EventOf("GROUP_FORMED"));
  CHECK(cluster.EventOf("GROUP_FORMED")->fields().at("workers") == "2");
}

TEST_CASE("A job of two workers waits for the second one", "[coordinator][unit]") {
  Cluster cluster;
  (void)cluster.Join(kLeader);
  REQUIRE(cluster.Submit(TogetherSpec(2)).ok());
  CHECK(cluster.job().record().job().message() == "waiting for 1 more worker (1 of 2 is there)");
  (void)cluster.Join(kMember);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  REQUIRE(cluster.Schedule(1, 2).ok());
  CHECK_FALSE(cluster.at(kLeader).given.empty());
}

TEST_CASE("A member that is lost costs no view: the others form the next group at once",
          "[coordinator][unit]") {
  InStep running;
  Cluster& cluster = running.cluster;
  const std::uint64_t before = running.Generation(kLeader);
  cluster.Kill(kMember);
  cluster.Pass(Millis(1'000));
  CHECK(cluster.View() == 1);
  CHECK(running.Generation(kLeader) > before);
  CHECK((GroupOf(cluster.at(kLeader)) == Tasks{"worker:0", "worker:2"}));
  CHECK(cluster.at(kLeader).joined.lost());
  REQUIRE(cluster.EventOf("WORKER_LOST"));
  CHECK(cluster.EventOf("WORKER_LOST")->message().find("2 workers go on without it") !=
        std::string::npos);
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 9);
}

TEST_CASE("When the leader is lost the next member has its closures", "[coordinator][unit]") {
  InStep running;
  Cluster& cluster = running.cluster;
  cluster.Kill(kLeader);
  cluster.Pass(Millis(1'000));
  CHECK(cluster.View() == 1);
  CHECK((GroupOf(cluster.at(kMember)) == Tasks{"worker:1", "worker:2"}));
  CHECK_FALSE(cluster.at(kMember).given.empty());
  CHECK(cluster.at(kLastMember).given.empty());
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 9);
  // It has the variables, so it saves.
  REQUIRE(cluster.Save(9).ok());
  CHECK(cluster.at(kMember).commands.back().has_save_variables());
}

TEST_CASE("A worker that comes back joins behind the others, and is given the variables",
          "[coordinator][unit]") {
  InStep running;
  Cluster& cluster = running.cluster;
  cluster.Kill(kLeader);
  cluster.Pass(Millis(1'000));
  const FakeDaemon& back = cluster.Join(kLeader, "boot-2");
  CHECK(back.start.joins());
  CHECK(back.start.restore_from().empty());
  CHECK((GroupOf(back) == Tasks{"worker:1", "worker:2", "worker:0"}));
  CHECK(back.joined.rank() == 2);
  CHECK_FALSE(back.joined.lost());
  CHECK(back.given.empty());
  CHECK(cluster.View() == 1);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("With fewer workers than the steps need those who are left keep them, and wait",
          "[coordinator][unit]") {
  InStep running(2, 2, 2);
  Cluster& cluster = running.cluster;
  cluster.Kill(kMember);
  cluster.Pass(Millis(1'000));
  CHECK(cluster.View() == 1);
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  CHECK(cluster.job().record().job().message() ==
        "waiting for 1 more worker: 1 of 2 is there; the steps done are kept by those who are");
  (void)cluster.Join(kMember, "boot-2");
  CHECK(cluster.View() == 1);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK((GroupOf(cluster.at(kLeader)) == Tasks{"worker:0", "worker:1"}));
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 9);
}

TEST_CASE("When nobody has the variables any more the job goes back to its checkpoint",
          "[coordinator][unit]") {
  InStep running(1, 2, 2);
  Cluster& cluster = running.cluster;
  cluster.Kill(kLeader);
  cluster.Kill(kMember);
  cluster.JoinAll(0, 2, "boot-2");
  cluster.Pass(Millis(6'000));
  CHECK(cluster.View() == 2);
  CHECK(cluster.at(kLeader).start.restore_from() == "step-4");
  CHECK(cluster.at(kMember).start.restore_from() == "step-4");
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A member that does not answer is left out of the next group, and asked again later",
          "[coordinator][unit]") {
  InStep running;
  Cluster& cluster = running.cluster;
  cluster.at(kLastMember).silent_groups = true;
  cluster.Kill(kMember);
  cluster.Pass(Millis(4'000));
  CHECK((GroupOf(cluster.at(kLeader)) == Tasks{"worker:0"}));
  REQUIRE(cluster.EventOf("GROUP_FAILED"));
  CHECK(cluster.EventOf("GROUP_FAILED")->message().find("worker:2") != std::string::npos);
  CHECK(cluster.View() == 1);
  cluster.at(kLastMember).silent_groups = false;
  cluster.Pass(Millis(6'000));
  CHECK((GroupOf(cluster.at(kLeader)) == Tasks{"worker:0", "worker:2"}));
}

// The last of many greets all others one after another, which from far away takes more than 2 s.
TEST_CASE("Members have the longer to find each other the more they are", "[coordinator][unit]") {
  InStep running(1, 40, 40);
  Cluster& cluster = running.cluster;
  cluster.at(kLastMember).silent_groups = true;
  cluster.Kill(kMember);

  cluster.Pass(Millis(6'500));

  CHECK_FALSE(cluster.EventOf("GROUP_FAILED"));
  cluster.Pass(Millis(2'500));
  CHECK(cluster.EventOf("GROUP_FAILED"));
  CHECK(GroupOf(cluster.at(kLeader)).size() == 38);
}

TEST_CASE(
    "Where all answer and do not find each other one after the other is left out until the rest "
    "do, and asked again later",
    "[coordinator][unit]") {
  const auto [apart, rest] = GENERATE(std::pair(kLeader, Tasks{"worker:1", "worker:2"}),
                                      std::pair(kMember, Tasks{"worker:0", "worker:2"}),
                                      std::pair(kLastMember, Tasks{"worker:0", "worker:1"}));
  InStep running(2, 3);
  Cluster& cluster = running.cluster;
  FakeDaemon& daemon = cluster.at(apart);
  daemon.refuse[v1::Command::kJoinGroup] = Unavailable("it waits for another one");
  FakeDaemon& leader = cluster.at(kLeader);
  const testing::Given given = leader.given.front();
  leader.given.pop_front();
  leader.Finish(given, Unavailable("another one has been silent for 4 s"));

  cluster.Pass(Millis(3'000));

  CAPTURE(apart.ToString());
  FakeDaemon& leads = apart == kLeader ? cluster.at(kMember) : leader;
  CHECK((GroupOf(leads) == rest));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK_FALSE(leads.given.empty());
  CHECK(cluster.View() == 1);
  daemon.refuse.clear();
  cluster.Pass(Millis(6'000));
  CHECK(GroupOf(leads).size() == 3);
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 9);
}

TEST_CASE("Two that do not find each other are two left out of four", "[coordinator][unit]") {
  InStep running(1, 4, 4);
  Cluster& cluster = running.cluster;
  for (const TaskId& task : {kMember, kLastMember}) {
    cluster.at(task).refuse[v1::Command::kJoinGroup] = Unavailable("it waits for another one");
  }
  cluster.Kill({"worker", 3});

  cluster.Pass(Millis(3'000));

  CHECK((GroupOf(cluster.at(kLeader)) == Tasks{"worker:0"}));
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 9);
}

// Hosts of which the network no longer connects these two.
void Cut(Cluster& cluster, const TaskId& one, const TaskId& other) {
  cluster.at(one).cut_from.insert(other);
  cluster.at(other).cut_from.insert(one);
}

TEST_CASE("Of two pairs that do not find each other one of each is left out",
          "[coordinator][unit]") {
  const TaskId last{"worker", 3};
  const auto [first, second] =
      GENERATE_COPY(std::pair(std::pair(kLeader, kMember), std::pair(kLastMember, last)),
                    std::pair(std::pair(kLeader, kLastMember), std::pair(kMember, last)),
                    std::pair(std::pair(kLeader, last), std::pair(kMember, kLastMember)));
  const std::uint32_t least = GENERATE(1, 2);
  InStep running(least, 4, 4);
  Cluster& cluster = running.cluster;
  Cut(cluster, first.first, first.second);
  Cut(cluster, second.first, second.second);
  FakeDaemon& leader = cluster.at(kLeader);
  const testing::Given given = leader.given.front();
  leader.given.pop_front();
  leader.Finish(given, Unavailable("another one has been silent for 4 s"));

  cluster.Pass(Millis(4'000));

  CAPTURE(first.second.ToString(), least);
  CHECK(cluster.View() == 1);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.EventOf("GROUP_FORMED")->fields().at("workers") == "2");
  for (auto& [task, daemon] : cluster.daemons) daemon->cut_from.clear();
  cluster.Pass(Millis(6'000));
  CHECK(cluster.EventOf("GROUP_FORMED")->fields().at("workers") == "4");
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 9);
}

TEST_CASE("Workers without variables do not go on without the one that has them, and is there",
          "[coordinator][unit]") {
  const std::uint32_t least = GENERATE(1, 2);
  InStep running(least, 3, least == 1 ? 3 : 2);
  Cluster& cluster = running.cluster;
  for (const TaskId& task : {kMember, kLastMember}) {
    if (cluster.daemons.contains(task)) cluster.Kill(task);
  }
  cluster.Pass(Millis(1'000));
  FakeDaemon& leader = cluster.at(kLeader);
  SECTION("it does not answer for a while") { leader.silent_groups = true; }
  SECTION("the others are out of its reach") { leader.cut_from = {kMember, kLastMember}; }
  for (const TaskId& task : {kMember, kLastMember}) {
    cluster.Join(task, "boot-2").has_variables = false;
    CHECK(cluster.at(task).start.joins());
  }

  cluster.Pass(Millis(8'000));

  CHECK(cluster.View() == 1);
  leader.silent_groups = false;
  leader.cut_from.clear();
  cluster.Pass(Millis(12'000));
  CHECK(cluster.View() == 1);
  CHECK((GroupOf(leader) == Tasks{"worker:0", "worker:1", "worker:2"}));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 9);
}

TEST_CASE("A job goes back to its checkpoint when who has the variables stays out of reach",
          "[coordinator][unit]") {
  InStep running(2, 3, 2);
  Cluster& cluster = running.cluster;
  cluster.Kill(kMember);
  cluster.Pass(Millis(1'000));
  cluster.at(kLeader).cut_from = {kMember, kLastMember};
  for (const TaskId& task : {kMember, kLastMember}) {
    cluster.Join(task, "boot-2").has_variables = false;
  }
  cluster.Pass(Millis(50'000));
  CHECK(cluster.View() == 1);
  cluster.Pass(Millis(20'000));
  CHECK(cluster.View() > 1);
  CHECK(cluster.at(kMember).start.restore_from() == "step-4");
}

TEST_CASE("A closure that the leader hands back makes the group form again",
          "[coordinator][unit]") {
  InStep running;
  Cluster& cluster = running.cluster;
  const std::uint64_t before = running.Generation(kLeader);
  FakeDaemon& leader = cluster.at(kLeader);
  const testing::Given given = leader.given.front();
  leader.given.pop_front();
  leader.Finish(given, Unavailable("worker:2 has been silent for 4 s"));
  cluster.Pass(Millis(500));
  CHECK(running.Generation(kLastMember) > before);
  CHECK(cluster.View() == 1);
}

TEST_CASE("A new coordinator goes on with the leader's variables, and gives them to the others",
          "[coordinator][unit]") {
  InStep running;
  Cluster& cluster = running.cluster;
  cluster.WorkAll();
  const std::uint64_t before = running.Generation(kLeader);
  cluster.RestartCoordinator();
  cluster.JoinAll(0, 3);
  cluster.Pass(Millis(6'000));
  REQUIRE(cluster.EventOf("VIEW_ADOPTED"));
  CHECK(cluster.EventOf("VIEW_ADOPTED")->fields().at("steps_lost") == "0");
  CHECK(cluster.View() == 1);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(running.Generation(kLeader) > before);
  CHECK((GroupOf(cluster.at(kLeader)) == Tasks{"worker:0", "worker:1", "worker:2"}));
  CHECK(cluster.at(kMember).start.joins());
}

TEST_CASE("Executors of a group that are killed together are no step's fault",
          "[coordinator][unit]") {
  InStep running(1, 8, 8);
  Cluster& cluster = running.cluster;
  // All before those that are left could form another group.
  for (int i = 0; i < 8; ++i) cluster.at({"worker", i}).silent_groups = true;
  for (int i = 0; i < 8; ++i) cluster.at({"worker", i}).ExecutorExits("signal SIGKILL", true);
  for (int i = 0; i < 8; ++i) cluster.at({"worker", i}).silent_groups = false;
  cluster.Pass(Millis(60'000));
  CHECK_FALSE(cluster.EventOf("POISON_CLOSURE"));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.View() == 2);
  CHECK(cluster.at(kLeader).start.restore_from() == "step-4");
}

TEST_CASE("Workers that have the variables are asked again before spare ones",
          "[coordinator][unit]") {
  InStep running(2, 0, 4);
  Cluster& cluster = running.cluster;
  const TaskId third{"worker", 3};
  for (const TaskId& task : {kLeader, kMember}) {
    cluster.Kill(task);
    cluster.Pass(Millis(2'000));
  }
  REQUIRE((GroupOf(cluster.at(third)) == Tasks{"worker:2", "worker:3"}));
  cluster.JoinAll(0, 2, "boot-2");
  cluster.Pass(Millis(1'000));

  // Their daemons connect again, as after a coordinator that stood still.
  (void)cluster.Join(kLastMember);
  (void)cluster.Join(third);
  cluster.Pass(Millis(6'000));

  CHECK(cluster.View() == 1);
  CHECK(cluster.at(kLeader).start.plan().job_id().empty());
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A step that ends executors again and again fails the job", "[coordinator][unit]") {
  InStep running(1, 2, 2);
  Cluster& cluster = running.cluster;
  for (int i = 0; i < 10 && cluster.State() != v1::JOB_STATE_FAILED; ++i) {
    cluster.at(kLeader).ExecutorExits("signal SIGSEGV");
    cluster.Pass(Millis(20'000));
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.EventOf("POISON_CLOSURE"));
}

TEST_CASE("A step that ends the only executor of a group again and again fails the job",
          "[coordinator][unit]") {
  InStep running(1, 0, 1);
  Cluster& cluster = running.cluster;
  for (int i = 0; i < 10 && cluster.State() != v1::JOB_STATE_FAILED; ++i) {
    cluster.at(kLeader).ExecutorExits("signal SIGSEGV");
    cluster.Pass(Millis(20'000));
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.EventOf("POISON_CLOSURE"));
}

}  // namespace
}  // namespace muster::coordinator
