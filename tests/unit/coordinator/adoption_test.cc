// Views that outlive the coordinator that began them.
#include "coordinator/adoption.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

v1::AdoptReport Report(std::uint64_t watermark, const ClosureRuns& above = {}) {
  v1::AdoptReport report;
  v1::ClosureMarks& marks = *report.add_shards();
  marks.set_watermark(watermark);
  for (const ClosureRun& run : above) {
    v1::ClosureRun& one = *marks.add_above();
    one.set_first(run.first);
    one.set_last(run.last);
  }
  return report;
}

bool Contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// Which closures the workers have.
std::vector<std::uint64_t> GivenOut(Cluster& cluster) {
  std::vector<std::uint64_t> ids;
  for (const auto& [task, daemon] : cluster.daemons) {
    for (const testing::Given& one : daemon->given) ids.push_back(one.closure().id());
  }
  std::ranges::sort(ids);
  return ids;
}

// Steps 1 to 8 of a hundred are done, but for 3 and 6, which had been given out; 3 has got to one
// of two servers.
struct Interrupted {
  explicit Interrupted(const v1::JobSpec& spec = Cluster::Spec()) {
    cluster.JoinAll(2, 4);
    REQUIRE(cluster.Submit(spec).ok());
    REQUIRE(cluster.Schedule(1, 8).ok());
    for (const auto& [task, daemon] : cluster.daemons) {
      const std::deque<testing::Given> given = daemon->given;
      for (const testing::Given& one : given) {
        if (one.closure().id() == 3) daemon->Push(one, {1});
        if (one.closure().id() == 3 || one.closure().id() == 6) {
          late.emplace_back(daemon, one);
        } else {
          daemon->Finish(one);
        }
      }
    }
    cluster.options.before = {
        .alive = cluster.time.WallNow() - Millis(2'500), .pid = 77, .how = "signal SIGKILL"};
    cluster.RestartCoordinator();
    cluster.Settle();
  }

  Cluster cluster;
  std::vector<std::pair<std::shared_ptr<FakeDaemon>, testing::Given>> late;
};

TEST_CASE("A closure is done when every shard has applied it", "[coordinator][unit]") {
  CHECK_FALSE(AppliedIn({}).has_value());
  const v1::AdoptReport none;  // a server without a shard of the job
  const std::vector<v1::AdoptReport> reports{Report(4, {{6, 9}, {12, 12}}), none,
                                             Report(2, {{4, 7}, {9, 13}})};
  const auto applied = AppliedIn(reports);
  REQUIRE(applied);
  CHECK(applied->everywhere == ClosureRuns{{1, 2}, {4, 4}, {6, 7}, {9, 9}, {12, 12}});
  CHECK(applied->highest == 13);
  const std::vector<v1::AdoptReport> nothing{Report(0), Report(0)};
  CHECK(AppliedIn(nothing)->everywhere.empty());
  CHECK(AppliedIn(nothing)->highest == 0);
}

TEST_CASE("A killed coordinator costs a job no step: its view goes on under the next one",
          "[coordinator][unit]") {
  Interrupted was;
  Cluster& cluster = was.cluster;
  cluster.JoinAll(2, 4);

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.View() == 1);
  CHECK(cluster.checkpoints.searches.size() == 1);  // of the beginning
  const auto adopted = cluster.EventOf("VIEW_ADOPTED");
  REQUIRE(adopted);
  CHECK(adopted->message() ==
        "goes on where it stood: 0 steps lost, 2 of 100 done; 6 closures that had been begun run "
        "again; 2.5 s have passed since the coordinator before this one was last alive");
  CHECK(adopted->fields().at("steps_lost") == "0");
  CHECK(adopted->fields().at("step") == "2");
  CHECK(adopted->fields().at("closures") == "6");
  CHECK(adopted->fields().at("gap_ms") == "2500");
  CHECK_FALSE(Contains(cluster.Reasons(), "JOB_RESTORED"));
  CHECK(GivenOut(cluster) == std::vector<std::uint64_t>{3, 4, 5, 6, 7, 8});

  SECTION("its new driver goes on where the one before it stood") {
    const auto opened = cluster.Open();
    REQUIRE(opened.ok());
    CHECK(opened->scheduled() == 8);
    CHECK(opened->steps_done() == 2);
    CHECK(opened->plan().start_step() == 0);
    REQUIRE(cluster.Schedule(1, 20).ok());  // those that are done are passed over
    cluster.WorkAll();
    CHECK(cluster.JoinNow()->steps_done() == 20);
    for (const int index : {0, 1}) CHECK(cluster.MemoryOf({"ps", index})->StandsAt(20));
  }
  SECTION("what executors of before push late is refused, and a cut stays one") {
    cluster.WorkAll();
    REQUIRE(cluster.Schedule(9, 9).ok());
    cluster.WorkAll();
    testing::Given zombie = was.late[0].second;
    zombie.what.set_id(10);
    was.late[0].first->Push(zombie, {0, 1});
    REQUIRE(cluster.Save(9).ok());
    for (const int index : {0, 1}) CHECK(cluster.at({"ps", index}).torn_saves == 0);
    REQUIRE(cluster.Schedule(10, 10).ok());
    cluster.WorkAll();
    CHECK(cluster.JoinNow()->steps_done() == 10);
  }
  SECTION("and under the one after that") {
    cluster.RestartCoordinator();
    cluster.JoinAll(2, 4);
    CHECK(cluster.View() == 1);
    CHECK(cluster.Open()->steps_done() == 2);
    cluster.WorkAll();
    CHECK(cluster.Open()->steps_done() == 8);
  }
}

TEST_CASE("What only one server has applied runs again before the next cut",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(2, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 2).ok());
  FakeDaemon& worker = cluster.at({"worker", 0});
  worker.Push(worker.given[1], {1});
  cluster.RestartCoordinator();
  cluster.JoinAll(2, 1);
  CHECK(cluster.Open()->scheduled() == 2);
  CHECK(cluster.Open()->steps_done() == 0);
  cluster.WorkAll();
  CHECK(cluster.Save(2).ok());
  CHECK(cluster.at({"ps", 0}).torn_saves + cluster.at({"ps", 1}).torn_saves == 0);
}

TEST_CASE("A view goes on only when all of its servers are the same processes",
          "[coordinator][unit]") {
  Interrupted was;
  Cluster& cluster = was.cluster;
  (void)cluster.Join({"ps", 0});
  (void)cluster.Join({"worker", 0});
  CHECK(cluster.job().record().job().reason() == "WAITING_FOR_TASKS");
  CHECK(cluster.at({"ps", 0}).commands.empty());

  SECTION("one is another process: back to the checkpoint, and why is told") {
    (void)cluster.Join({"ps", 1}, "boot-2");
    CHECK(cluster.View() == 2);
    const auto given_up = cluster.EventOf("VIEW_GIVEN_UP");
    REQUIRE(given_up);
    CHECK(given_up->message().starts_with(
        "cannot go on where it stood when the coordinator was lost: ps:1 is another process now"));
    CHECK(cluster.EventOf("JOB_RESTORED")->fields().at("step") == "0");
  }
  SECTION("one does not come: after the wait the job makes do with the other") {
    cluster.Pass(Millis(59'000));
    CHECK(cluster.View() == 1);
    cluster.Pass(Millis(2'000));
    CHECK(cluster.View() == 2);
    CHECK(cluster.EventOf("VIEW_GIVEN_UP")->message().ends_with("ps:1 has not come back"));
    CHECK(cluster.Open()->plan().ps_size() == 1);
  }
  SECTION("one says that it holds nothing of the view") {
    cluster.memories.erase({TaskId{"ps", 1}, "boot-1", "job-1"});
    (void)cluster.Join({"ps", 1});
    CHECK(cluster.View() == 2);
    CHECK(Contains(cluster.Reasons(), "VIEW_GIVEN_UP"));
  }
  SECTION("one is lost while it is asked and comes back: it is asked again") {
    (void)cluster.Join({"ps", 1}, "boot-1", "host", {},
                       {{v1::Command::kAdoptVariables, Unavailable("on its way")}});
    CHECK(cluster.job().record().job().reason() == "ADOPTING");
    cluster.at({"ps", 1}).refuse.clear();
    cluster.Pass(Millis(1'500));
    CHECK(cluster.View() == 1);
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  }
  SECTION("one is cut off when it has answered, before the other has") {
    cluster.at({"ps", 0}).needs_files = {v1::Command::kAdoptVariables};
    (void)cluster.Join({"ps", 1});
    cluster.Kill({"ps", 1});
    cluster.Pass(Millis(5'000));
    cluster.at({"ps", 0}).FilesCome();
    cluster.Settle();
    CHECK_FALSE(Contains(cluster.Reasons(), "VIEW_GIVEN_UP"));
    CHECK(cluster.View() == 1);

    SECTION("it comes back, and is asked again") {
      (void)cluster.Join({"ps", 1});
      cluster.Pass(Millis(1'500));
      CHECK(cluster.View() == 1);
      CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
      CHECK(Contains(cluster.Reasons(), "VIEW_ADOPTED"));
    }
    SECTION("another process comes in its place") {
      (void)cluster.Join({"ps", 1}, "boot-2");
      cluster.Pass(Millis(1'500));
      CHECK(cluster.View() == 2);
      CHECK(Contains(cluster.Reasons(), "VIEW_GIVEN_UP"));
    }
    SECTION("it does not come: after the wait the job makes do with the other") {
      cluster.Pass(Millis(59'000));
      CHECK(cluster.View() == 1);
      cluster.Pass(Millis(4'000));
      CHECK(cluster.View() == 2);
      CHECK(cluster.EventOf("VIEW_GIVEN_UP")->message().ends_with("ps:1 has not come back"));
    }
  }
}

TEST_CASE("Nothing done and an archive's values not given yet: the view is made anew",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 0);
  v1::JobSpec spec = Cluster::Spec();
  spec.mutable_model()->Clear();
  spec.mutable_model()->set_archive("model.pt");
  spec.mutable_model()->set_archive_sha256(std::string(64, 'a'));
  v1::VariableLayout& w = *cluster.Join({"worker", 0}).check.add_parameters();
  w.set_name("w");
  w.set_dtype(v1::DTYPE_FLOAT32);
  w.add_shape(4);
  w.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_ARCHIVE);
  REQUIRE(cluster.Submit(spec).ok());
  REQUIRE(cluster.View() == 1);
  cluster.RestartCoordinator();
  cluster.JoinAll(1, 1);
  CHECK(cluster.View() == 2);
  CHECK(cluster.at({"worker", 0}).start.assign_initial_values());
}

TEST_CASE(
    "A checkpoint that was saved before is the view's, one that was being saved is made again",
    "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 10);
  SECTION("saved") {
    cluster.RestartCoordinator();
    cluster.JoinAll(1, 1);
    CHECK(cluster.Open()->saved_step() == 10);
    CHECK(cluster.Save(10).ok());
    CHECK(cluster.checkpoints.manifests.size() == 1);
  }
  SECTION("being saved") {
    REQUIRE(cluster.Schedule(11, 20).ok());
    cluster.WorkAll();
    cluster.checkpoints.commits_hang = true;
    const auto answer = cluster.BeginSave(20);
    cluster.Settle();
    cluster.RestartCoordinator();
    cluster.checkpoints.commits_hang = false;
    cluster.JoinAll(1, 1);
    CHECK(cluster.View() == 1);
    CHECK(cluster.Open()->saved_step() == 10);
    CHECK_FALSE(cluster.Open()->has_saving_step());
    CHECK(cluster.Save(20).ok());
    CHECK(cluster.checkpoints.manifests.back().step() == 20);
  }
}

TEST_CASE("A job that was asked to stop is saved under the next coordinator too",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 10).ok());
  cluster.WorkAll();
  cluster.job().Stop(Millis(0));
  REQUIRE(cluster.Written().ok());
  cluster.RestartCoordinator();

  SECTION("its variables are there: its driver saves and ends it") {
    cluster.JoinAll(1, 1);
    CHECK(cluster.State() == v1::JOB_STATE_STOPPING);
    CHECK(cluster.JoinNow()->stop_requested());
    REQUIRE(cluster.Save(10).ok());
    REQUIRE(cluster.FinishJob(Cancelled("stopped as asked at step 10")).ok());
    CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
  }
  SECTION("a server lost its memory: nothing is left to save") {
    cluster.JoinAll(1, 1, "boot-2");
    CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
    CHECK(cluster.View() == 1);
  }
  SECTION("a server does not come: it ends all the same") {
    (void)cluster.Join({"worker", 0});
    cluster.Pass(Millis(61'000));
    CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
  }
  SECTION("its driver does nothing: it ends all the same") {
    cluster.JoinAll(1, 1);
    cluster.Pass(Millis(61'000));
    CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
  }
}

TEST_CASE("A home that is still there keeps its variables over a coordinator's death",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(0, 2);
  REQUIRE(cluster.Submit(Cluster::WithoutServers()).ok());
  REQUIRE(cluster.Schedule(1, 6).ok());
  const TaskId home{"worker", 0};
  cluster.at(home).Finish(cluster.at(home).given[0]);
  cluster.at(home).Finish(cluster.at(home).given[1]);
  cluster.RestartCoordinator();
  cluster.Settle();
  (void)cluster.Join({"worker", 1});
  CHECK(cluster.job().record().job().message().find("worker:0, which holds its variables") !=
        std::string::npos);

  SECTION("the job goes on there") {
    (void)cluster.Join(home);
    CHECK(cluster.View() == 1);
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
    CHECK(cluster.Open()->steps_done() == 2);
    CHECK(cluster.EventOf("VIEW_ADOPTED")->fields().at("steps_lost") == "0");
    REQUIRE(cluster.Schedule(3, 6).ok());
    cluster.WorkAll();
    CHECK(cluster.JoinNow()->steps_done() == 6);
    CHECK(cluster.at({"worker", 1}).start.plan().job_id().empty());
  }
  SECTION("its worker is another process: the checkpoint") {
    (void)cluster.Join(home, "boot-2");
    CHECK(cluster.View() == 2);
    CHECK(Contains(cluster.Reasons(), "VIEW_GIVEN_UP"));
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  }
  SECTION("it does not come back: another worker, from the checkpoint") {
    cluster.Pass(Millis(61'000));
    CHECK(cluster.View() == 2);
    CHECK(cluster.EventOf("VIEW_GIVEN_UP")->message().ends_with("has not come back"));
    CHECK(cluster.at({"worker", 1}).start.plan().view() == 2);
  }
}

}  // namespace
}  // namespace muster::coordinator
