// Disks and folders that fail: each costs a checkpoint or a wait, and is said; none costs the job.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

// A job that has made steps 1 to 10, saved them, and lost its parameter server afterwards.
void RunAndLose(Cluster& cluster) {
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 10);
  cluster.Kill({"ps", 0});
  cluster.Pass(Millis(1'000));
}

int Count(Cluster& cluster, const std::string& reason) {
  const std::vector<std::string> reasons = cluster.Reasons();
  return static_cast<int>(std::count(reasons.begin(), reasons.end(), reason));
}

TEST_CASE("A disk that fails on a parameter server costs a checkpoint, is said, and not the job",
          "[coordinator][unit]") {
  for (const Status& error :
       {Unknown("fdatasync /x: Input/output error"), PermissionDenied("create /x: read-only"),
        NotFound("create /x: no such folder"), ResourceExhausted("write /x: no space"),
        DataLoss("/x has 3 bytes; its writer reported 4")}) {
    Cluster cluster;
    cluster.JoinAll(2, 1);
    REQUIRE(cluster.Submit(Cluster::Spec()).ok());
    REQUIRE(cluster.Schedule(1, 10).ok());
    cluster.WorkAll();
    FakeDaemon& ps = cluster.at({"ps", 1});
    ps.refuse[v1::Command::kSaveVariables] = error;

    const Status failed = cluster.Save(10);

    CHECK(failed.code() == Cluster::kSaveFailed);
    CHECK(Message(failed) == "ps:1: " + Message(error));
    const auto event = cluster.EventOf("CHECKPOINT_FAILED");
    REQUIRE(event);
    CHECK(event->message().find("ps:1: " + Message(error)) != std::string::npos);
    CHECK(event->message().find("the job goes on") != std::string::npos);
    CHECK(event->fields().at("code") == CodeName(error.code()));
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
    CHECK(cluster.checkpoints.discarded == std::vector<std::string>{"step-10"});

    ps.refuse.clear();
    REQUIRE(cluster.Schedule(11, 20).ok());
    cluster.WorkAll();
    CHECK(cluster.Save(20).ok());
    CHECK(Count(cluster, "CHECKPOINT_SAVED") == 1);
    CHECK(cluster.FinishJob().ok());
    CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  }
}

TEST_CASE("A server that is there and always says UNAVAILABLE does not hold a save for ever",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.at({"ps", 0}).refuse[v1::Command::kSaveVariables] = Unavailable("not now");

  CHECK(cluster.Save(0).code() == StatusCode::kUnknown);  // no answer yet
  cluster.Pass(Millis(15'000));

  REQUIRE(cluster.EventOf("CHECKPOINT_FAILED"));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A folder that cannot be written costs a checkpoint each time, and is said each time",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.checkpoints.unwritable = PermissionDenied("make /x: read-only file system");

  CHECK(cluster.Save(0).code() == Cluster::kSaveFailed);
  CHECK(cluster.Save(0).code() == Cluster::kSaveFailed);

  CHECK(Count(cluster, "CHECKPOINT_FAILED") == 2);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  cluster.checkpoints.unwritable = Ok();
  CHECK(cluster.Save(0).ok());
  CHECK(Count(cluster, "CHECKPOINT_SAVED") == 1);
}

TEST_CASE("A folder that does not answer costs a checkpoint after a minute, then nothing but that",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.checkpoints.hangs = true;

  (void)cluster.Save(0);
  cluster.Pass(Millis(59'000), Millis(200));
  CHECK_FALSE(cluster.EventOf("CHECKPOINT_FAILED"));
  cluster.Pass(Millis(2'000));
  REQUIRE(cluster.EventOf("CHECKPOINT_FAILED"));
  CHECK(cluster.EventOf("CHECKPOINT_FAILED")->message().find("has not answered for 60 s") !=
        std::string::npos);
  // The next one does not wait again.
  CHECK(cluster.Save(0).code() == Cluster::kSaveFailed);
  CHECK(Count(cluster, "CHECKPOINT_FAILED") == 2);

  cluster.checkpoints.hangs = false;
  REQUIRE(cluster.checkpoints.waiting.size() == 1);
  cluster.checkpoints.waiting[0]();
  CHECK(cluster.Save(0).ok());
  CHECK(Count(cluster, "CHECKPOINT_SAVED") == 1);
}

TEST_CASE("A folder that cannot be read is waited for, said once, and never taken for empty",
          "[coordinator][unit]") {
  Cluster cluster;
  RunAndLose(cluster);
  cluster.checkpoints.unreadable = Unknown("list folder /x: Input/output error");

  (void)cluster.Join({"ps", 0}, "boot-2");
  cluster.Pass(Millis(20'000));

  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  CHECK(cluster.job().record().job().reason() == "CHECKPOINTS_UNREADABLE");
  CHECK(Count(cluster, "CHECKPOINTS_UNREADABLE") == 1);
  CHECK(cluster.EventOf("CHECKPOINTS_UNREADABLE")->message().find("Input/output error") !=
        std::string::npos);
  CHECK(cluster.checkpoints.searches.back().known == std::vector<std::string>{"step-10"});
  CHECK_FALSE(cluster.EventOf("CHECKPOINT_REFUSED"));

  cluster.checkpoints.unreadable = Ok();
  cluster.Pass(Millis(3'000));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Open()->plan().start_step() == 10);
}

TEST_CASE("A folder that hangs while it is searched is named", "[coordinator][unit]") {
  Cluster cluster;
  RunAndLose(cluster);
  cluster.checkpoints.hangs = true;

  (void)cluster.Join({"ps", 0}, "boot-2");
  cluster.Pass(Millis(61'000), Millis(200));

  REQUIRE(cluster.EventOf("CHECKPOINTS_UNREADABLE"));
  CHECK(cluster.EventOf("CHECKPOINTS_UNREADABLE")->message().find("has not answered for 60 s") !=
        std::string::npos);
  const auto unreadable = cluster.EventOf("CHECKPOINTS_UNREADABLE");
  CHECK_FALSE(unreadable->fields().at("directory").empty());
  CHECK(unreadable->fields().at("code") == "DEADLINE_EXCEEDED");
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
}

TEST_CASE("A parameter server that cannot read a good checkpoint is waited for",
          "[coordinator][unit]") {
  for (const Status& error : {Unknown("read /x: Stale file handle"), NotFound("no /x here"),
                              PermissionDenied("open /x: Permission denied")}) {
    Cluster cluster;
    RunAndLose(cluster);
    FakeDaemon& ps =
        cluster.Join({"ps", 0}, "boot-2", "host", {}, {{v1::Command::kCreateVariables, error}});
    cluster.Pass(Millis(10'000));

    CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
    CHECK(Count(cluster, "CHECKPOINTS_UNREADABLE") == 1);
    CHECK(cluster.EventOf("CHECKPOINTS_UNREADABLE")->message().find("ps:0: " + Message(error)) !=
          std::string::npos);
    CHECK_FALSE(cluster.EventOf("CHECKPOINT_REFUSED"));
    CHECK(Count(cluster, "JOB_RESTORED") == 1);

    ps.refuse.clear();
    cluster.Pass(Millis(3'000));
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
    CHECK(cluster.Open()->plan().start_step() == 10);
  }
}

TEST_CASE("A checkpoint counts though old ones could not be removed", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Save(0).ok());
  REQUIRE(cluster.Schedule(1, 10).ok());
  cluster.WorkAll();
  cluster.checkpoints.retention = Unknown("list folder /x: Input/output error");

  CHECK(cluster.Save(10).ok());

  CHECK(cluster.checkpoints.discarded.empty());
  CHECK(Count(cluster, "CHECKPOINT_SAVED") == 2);
  CHECK(cluster.EventOf("CHECKPOINT_SAVED")
            ->message()
            .find("old ones could not be removed: list folder /x") != std::string::npos);
  CHECK(cluster.job().checkpoints().size() == 2);
}

TEST_CASE("A ps that blinks twice is waited for from its second loss on", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(2, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  const std::uint64_t view = cluster.View();

  cluster.Kill({"ps", 1});
  cluster.Pass(Millis(30'000), Millis(200));
  (void)cluster.Join({"ps", 1}, "boot-1");
  cluster.Pass(Millis(20'000), Millis(200));
  cluster.Kill({"ps", 1});
  // Sixty seconds after the first loss, ten after the second.
  cluster.Pass(Millis(12'000), Millis(200));
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  CHECK(cluster.View() == view);
  (void)cluster.Join({"ps", 1}, "boot-1");

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.View() == view);
  CHECK_FALSE(cluster.EventOf("PS_REPLACED"));
}

const v1::DropJob* DropOf(const FakeDaemon& daemon, const std::string& job) {
  for (const v1::Command& command : daemon.commands) {
    if (command.has_drop_job() && command.drop_job().job_id() == job) return &command.drop_job();
  }
  return nullptr;
}

TEST_CASE("A ps that comes back is told to drop what ended, moved on, or was never here",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec("ended")).ok());
  v1::FinishJobRequest finish;
  finish.set_view(1);
  finish.set_driver(cluster.job("ended").driver().value());
  REQUIRE(cluster.Finish(finish, "ended").ok());
  REQUIRE(cluster.Submit(Cluster::Spec("job")).ok());
  const std::string running = cluster.job().id();
  v1::Register info;
  for (const auto& [id, view] :
       std::map<std::string, std::uint64_t>{{"ended-1", 1}, {running, 1}, {"stranger-7", 3}}) {
    v1::HeldJob& held = *info.add_jobs();
    held.set_job_id(id);
    held.set_epoch(1);
    held.set_view(view);
  }

  cluster.Kill({"ps", 0});
  cluster.Pass(Millis(2'000));
  FakeDaemon& ps = cluster.Join({"ps", 0}, "boot-1", "host", info);

  REQUIRE(DropOf(ps, "ended-1") != nullptr);
  CHECK(DropOf(ps, "ended-1")->view() == 1);
  CHECK(DropOf(ps, "ended-1")->epoch() == cluster.core->epoch().value());
  REQUIRE(DropOf(ps, "stranger-7") != nullptr);
  CHECK(DropOf(ps, "stranger-7")->view() == 3);
  CHECK(DropOf(ps, running) == nullptr);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

v1::JobSpec InFolder(const std::string& name, const std::string& folder = "/data/checkpoints") {
  v1::JobSpec spec = Cluster::Spec(name);
  spec.mutable_checkpoint()->set_directory(folder);
  return spec;
}

TEST_CASE("A second job with the folder of a first is refused until that has ended",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(InFolder("job")).ok());

  const auto refused = cluster.Submit(InFolder("second", "/data/checkpoints/"));
  CHECK(refused.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Message(refused.status()).find("/data/checkpoints belongs to job job-1") !=
        std::string::npos);
  const auto dry = cluster.Submit(InFolder("second"), /*dry_run=*/true);
  REQUIRE(dry.ok());
  REQUIRE(dry->problems_size() == 1);
  CHECK(dry->problems(0).find("belongs to job job-1") != std::string::npos);
  // The same job again is no second one.
  CHECK(cluster.Submit(InFolder("job"))->existing());
  CHECK(cluster.Submit(InFolder("job"), /*dry_run=*/true)->problems().empty());

  cluster.job().Stop(Millis(1));
  cluster.Pass(Millis(1'000));
  REQUIRE(cluster.State() == v1::JOB_STATE_CANCELLED);
  REQUIRE_FALSE(cluster.checkpoints.released.empty());
  CHECK(cluster.checkpoints.released.back() ==
        std::pair<std::string, std::string>("/data/checkpoints", "job-1"));
  CHECK(cluster.Submit(InFolder("second")).ok());
  CHECK(cluster.State("second") == v1::JOB_STATE_RUNNING);
  // And now the first one cannot go on.
  CHECK(Message(cluster.Submit(InFolder("job")).status()).find("belongs to job second-2") !=
        std::string::npos);
  CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
}

TEST_CASE("A folder that cannot be used is refused at submit, and a dry run says so",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  cluster.checkpoints.look = FailedPrecondition("/data belongs to job x-1 of another cluster");

  CHECK(cluster.Submit(InFolder("job")).status().code() == StatusCode::kFailedPrecondition);
  const auto dry = cluster.Submit(InFolder("job"), /*dry_run=*/true);

  REQUIRE(dry.ok());
  REQUIRE(dry->problems_size() == 1);
  CHECK(dry->problems(0) == "/data belongs to job x-1 of another cluster");
  CHECK(cluster.core->List().jobs().empty());
}

TEST_CASE("A folder that is taken over is said", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  cluster.checkpoints.taken_over = "the checkpoint folder was taken over";

  REQUIRE(cluster.Submit(InFolder("job")).ok());

  REQUIRE(cluster.EventOf("CHECKPOINTS_TAKEN_OVER"));
  const Checkpoints::Claimant& claimant = cluster.checkpoints.searches.back().claimant;
  CHECK(claimant.mark.job_id() == "job-1");
  CHECK(claimant.mark.cluster_id() == cluster.journal->cluster_id());
  CHECK(claimant.live.empty());
  const std::string id = cluster.journal->cluster_id();
  cluster.RestartCoordinator();
  CHECK(cluster.journal->cluster_id() == id);
}

}  // namespace
}  // namespace muster::coordinator
