// Who runs, who waits, who is forgotten; names and ids; what cannot be written to the database.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;

TEST_CASE("Jobs that wait for tasks hold back no others", "[coordinator][unit]") {
  Coordinator::Options options;
  options.max_running_jobs = 2;
  Cluster cluster(options);
  (void)cluster.Join({"worker", 0});
  for (const char* name : {"a", "b", "c"}) REQUIRE(cluster.Submit(Cluster::Spec(name)).ok());
  REQUIRE(cluster.Submit(Cluster::WithoutServers("d")).ok());

  for (const char* name : {"a", "b", "c"}) {
    CHECK(cluster.job(name).record().job().reason() == "WAITING_FOR_TASKS");
  }
  CHECK(cluster.State("d") == v1::JOB_STATE_RUNNING);
  // The oldest goes first when its tasks come.
  (void)cluster.Join({"ps", 0});
  CHECK(cluster.State("a") == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job("b").record().job().reason() == "WAITING_FOR_SLOT");
}

TEST_CASE("A slot that one job was promised goes to no second one whose tasks come right after",
          "[coordinator][unit]") {
  Coordinator::Options options;
  options.max_running_jobs = 1;
  Cluster cluster(options);
  REQUIRE(cluster.Submit(Cluster::Spec("job")).ok());
  REQUIRE(cluster.Submit(Cluster::WithoutServers("second")).ok());
  // Both registrations come before anything that the first one has led to.
  for (const TaskId& task : {TaskId{"worker", 0}, TaskId{"ps", 0}}) {
    auto daemon = std::make_shared<testing::FakeDaemon>(cluster, task, "boot-1");
    cluster.daemons[task] = daemon;
    v1::Register info;
    *info.mutable_task() = ToProto(task);
    info.set_boot_id("boot-1");
    info.mutable_data()->set_tcp_address("127.0.0.1:5000");
    daemon->session = *cluster.core->Register(info, daemon);
  }
  cluster.Settle();

  CHECK(cluster.State("second") == v1::JOB_STATE_RUNNING);
  CHECK(cluster.State("job") == v1::JOB_STATE_PENDING);
  CHECK(cluster.job("job").record().job().reason() == "WAITING_FOR_SLOT");
  cluster.job("second").Stop(Millis(10));
  cluster.Pass(Millis(200));
  CHECK(cluster.State("job") == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A job whose tasks are back is at no moment said to wait for other jobs while none runs",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(0, 1);
  REQUIRE(cluster.Submit(Cluster::WithoutServers("job")).ok());
  REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);
  cluster.RestartCoordinator();
  REQUIRE(cluster.State() == v1::JOB_STATE_RESTORING);

  auto daemon = std::make_shared<testing::FakeDaemon>(cluster, TaskId{"worker", 0}, "boot-2");
  cluster.daemons[{"worker", 0}] = daemon;
  v1::Register info;
  *info.mutable_task() = ToProto(TaskId{"worker", 0});
  info.set_boot_id("boot-2");
  daemon->session = *cluster.core->Register(info, daemon);
  // Before anything that the registration has led to.
  CHECK(cluster.job().record().job().reason() != "WAITING_FOR_SLOT");
  cluster.Settle();
  CHECK(cluster.job().admitted());
  CHECK(cluster.job().record().job().reason() != "WAITING_FOR_SLOT");
}

TEST_CASE("A job whose servers stay away gives its slot up, and takes the next one that is free",
          "[coordinator][unit]") {
  Coordinator::Options options;
  options.max_running_jobs = 1;
  options.tasks = {{"ps", 0}, {"worker", 0}};
  Cluster cluster(options);
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec("job")).ok());
  REQUIRE(cluster.Submit(Cluster::WithoutServers("second")).ok());
  CHECK(cluster.job("second").record().job().reason() == "WAITING_FOR_SLOT");

  cluster.Kill({"ps", 0});
  cluster.Pass(Millis(30'000));
  CHECK(cluster.State("second") == v1::JOB_STATE_PENDING);
  cluster.Pass(Millis(100'000));
  CHECK(cluster.State("second") == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().record().job().reason() == "WAITING_FOR_TASKS");
  (void)cluster.Join({"ps", 0}, "boot-2");
  CHECK(cluster.job().record().job().reason() == "WAITING_FOR_SLOT");
  cluster.job("second").Stop(Millis(10));
  cluster.Pass(Millis(200));
  CHECK(cluster.State("second") == v1::JOB_STATE_CANCELLED);
  CHECK(cluster.State("job") == v1::JOB_STATE_RUNNING);
}

TEST_CASE(
    "A name that is another job's id is refused, and an id that is another job's name is not "
    "given",
    "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec("job")).ok());
  REQUIRE(cluster.job("job").id() == "job-1");

  CHECK(cluster.Submit(Cluster::Spec("job-1")).status().code() == StatusCode::kAlreadyExists);
  REQUIRE(cluster.Submit(Cluster::Spec("other-3")).ok());  // other-3-2
  REQUIRE(cluster.Submit(Cluster::Spec("other")).ok());
  CHECK(cluster.job("other").id() == "other-4");
  CHECK(cluster.job("other-3").id() == "other-3-2");
}

TEST_CASE("Of ended jobs those are forgotten that ended first, and no number is used again",
          "[coordinator][unit]") {
  Coordinator::Options options;
  options.keep_jobs = 1;
  Cluster cluster(options);
  cluster.JoinAll(1, 1);
  for (const char* name : {"long", "short", "newest"}) {
    REQUIRE(cluster.Submit(Cluster::Spec(name)).ok());
  }
  for (const char* name : {"newest", "short", "long"}) {
    cluster.job(name).Stop(Millis(10));
    cluster.Pass(Millis(200));
  }

  REQUIRE(cluster.core->Find("long").ok());
  CHECK(cluster.State("long") == v1::JOB_STATE_CANCELLED);
  CHECK_FALSE(cluster.core->Find("short").ok());
  cluster.RestartCoordinator();
  cluster.JoinAll(1, 1);
  CHECK(cluster.core->Find("long").ok());
  v1::JobSpec edited = Cluster::Spec("newest");
  edited.set_batch_size(20);
  REQUIRE(cluster.Submit(edited).ok());
  CHECK(cluster.job("newest").id() == "newest-4");
}

TEST_CASE("A dry run is refused where a job that runs has the name, and changes nothing there",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  v1::JobSpec edited = Cluster::Spec();
  edited.set_batch_size(edited.batch_size() + 1);

  for (const bool dry_run : {true, false}) {
    CAPTURE(dry_run);
    const auto other = cluster.Submit(edited, dry_run);
    CHECK(other.status().code() == StatusCode::kAlreadyExists);
    CHECK(Message(other.status()).find("has the name \"job\" and another spec") !=
          std::string::npos);
    const auto anew = cluster.Submit(Cluster::Spec(), dry_run, /*restart=*/true);
    CHECK(anew.status().code() == StatusCode::kFailedPrecondition);
  }
  CHECK(cluster.Submit(Cluster::Spec(), /*dry_run=*/true).ok());

  cluster.job().Stop(Millis(1));
  cluster.Pass(Millis(1'000));
  REQUIRE(cluster.State() == v1::JOB_STATE_CANCELLED);
  CHECK(cluster.Submit(edited, /*dry_run=*/true).ok());
  CHECK(cluster.Submit(Cluster::Spec(), /*dry_run=*/true, /*restart=*/true).ok());
  CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
  CHECK(cluster.core->List().jobs_size() == 1);
}

TEST_CASE("A dry run without parameter servers finds nothing wrong and says that it would wait",
          "[coordinator][unit]") {
  Cluster cluster;
  (void)cluster.Join({"worker", 0});
  auto dry = cluster.Submit(Cluster::Spec(), /*dry_run=*/true);
  REQUIRE(dry.ok());
  CHECK(dry->problems().empty());
  CHECK(dry->waits_for() == "a parameter server");
  REQUIRE(dry->plan().variables_size() == 1);
  CHECK(dry->plan().total_steps() == 100);
  CHECK(dry->plan().variables(0).shards().empty());
  CHECK(dry->plan().ps().empty());

  (void)cluster.Join({"ps", 0});
  dry = cluster.Submit(Cluster::Spec(), /*dry_run=*/true);
  REQUIRE(dry.ok());
  CHECK(dry->waits_for().empty());
  CHECK(dry->plan().variables(0).shards_size() == 1);
}

TEST_CASE("An end that cannot be written is not told as one until it is", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 100);
  const Incarnation driver = cluster.job().driver();

  cluster.journal_full = true;
  CHECK(cluster.FinishJob().code() == StatusCode::kUnavailable);
  CHECK(cluster.Described().state() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Described().reason() == "JOURNAL_UNAVAILABLE");
  CHECK(cluster.Described().ended_ms() == 0);
  CHECK(cluster.core->List().jobs(0).state() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Finish(cluster.As<v1::FinishJobRequest>(driver)).code() ==
        StatusCode::kUnavailable);

  cluster.journal_full = false;
  cluster.Pass(Millis(2'000));
  CHECK(cluster.Described().state() == v1::JOB_STATE_SUCCEEDED);
  CHECK(cluster.Finish(cluster.As<v1::FinishJobRequest>(driver)).ok());
  cluster.RestartCoordinator();
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
}

TEST_CASE("A submission that a full disk has refused is no trouble of the disk's afterwards",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  cluster.journal_full = true;
  const auto refused = cluster.Submit(Cluster::Spec()).status();
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  CHECK(Message(refused).find("the coordinator cannot write to ") == 0);
  cluster.journal_full = false;

  CHECK_FALSE(cluster.core->Status().has_disk());
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  CHECK_FALSE(cluster.core->Status().has_disk());
}

TEST_CASE("A stop that cannot be written says so, holds, and is written as soon as it can be",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  CHECK(cluster.Written().ok());
  cluster.journal_full = true;
  cluster.job().Stop(Millis(60'000));
  CHECK(cluster.Written().code() == StatusCode::kUnavailable);
  CHECK(cluster.JoinNow()->stop_requested());
  cluster.journal_full = false;
  cluster.Pass(Millis(2'000));
  CHECK(cluster.Written().ok());
  CHECK(cluster.journal->LoadJobs()->at(0).record.stop_requested());
}

}  // namespace
}  // namespace muster::coordinator
