// Which checkpoints of a cluster's jobs may go: as the disk is asked, and what is answered.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

struct Collecting : testing::Cluster {
  static Coordinator::Options Folders() {
    Coordinator::Options options;
    options.jobs.checkpoints_directory = "/checkpoints";
    return options;
  }
  Collecting() : Cluster(Folders()) { JoinAll(1, 1); }

  Result<v1::CollectCheckpointsReply> Collect(const std::string& of = "", bool dry_run = false,
                                              bool finished = false) {
    v1::CollectCheckpointsRequest request;
    request.set_job(of);
    request.set_dry_run(dry_run);
    request.set_finished(finished);
    Result<v1::CollectCheckpointsReply> answer = Unknown("no answer");
    core->CollectCheckpoints(request, [&](auto reply) { answer = std::move(reply); });
    Settle();
    return answer;
  }
  // Its 60 steps are done and saved, and it ends.
  void Train() {
    REQUIRE(Submit(Spec()).ok());
    REQUIRE(Open().ok());
    TrainAndSave(1, 60);
  }
};

TEST_CASE_METHOD(Collecting,
                 "of a job that runs what its spec keeps stays, and what is being saved",
                 "[coordinator][unit]") {
  Train();
  REQUIRE(Collect().ok());
  REQUIRE(checkpoints.sweeps.size() == 1);
  CHECK(checkpoints.sweeps[0].root == "/checkpoints/job-1");
  CHECK(checkpoints.sweeps[0].keep == 3);
  CHECK_FALSE(checkpoints.sweeps[0].verify);
  CHECK_FALSE(checkpoints.sweeps[0].saving);

  REQUIRE(Schedule(61, 80).ok());
  WorkAll();
  checkpoints.commits_hang = true;
  (void)BeginSave(80);
  Settle();
  REQUIRE(Collect("job", /*dry_run=*/true).ok());
  CHECK(checkpoints.sweeps.back().saving == 80);
  CHECK(checkpoints.sweeps.back().dry_run);
}

TEST_CASE_METHOD(Collecting, "of a job that has ended the newest that is whole stays",
                 "[coordinator][unit]") {
  Train();
  const bool succeeds = GENERATE(true, false);
  REQUIRE(FinishJob(succeeds ? Ok() : Internal("it broke")).ok());
  REQUIRE(Collect().ok());
  CHECK(checkpoints.sweeps.back().keep == 1);
  CHECK(checkpoints.sweeps.back().verify);
  // The result of one that has succeeded goes when somebody says so; one that has failed goes on
  // from it when it is submitted again.
  REQUIRE(Collect("", false, /*finished=*/true).ok());
  CHECK(checkpoints.sweeps.back().keep == (succeeds ? 0 : 1));
}

TEST_CASE_METHOD(Collecting, "what has gone is not listed any more, and what stays says why",
                 "[coordinator][unit]") {
  Train();
  TrainAndSave(61, 80);
  checkpoints.swept = std::vector<Checkpoints::Swept>{
      {.directory = "step-60", .bytes = 100, .why = "old", .failure = {}},
      {.directory = "step-40", .bytes = 7, .why = "old", .failure = Unknown("it is busy")}};
  REQUIRE(Collect("", /*dry_run=*/true)->bytes() == 100);
  CHECK(job().checkpoints().size() == 2);

  const auto reply = Collect();
  REQUIRE(reply.ok());
  CHECK(reply->bytes() == 100);
  REQUIRE(reply->folders_size() == 2);
  CHECK(reply->folders(0).directory() == "step-40");
  CHECK(reply->folders(0).failure() == "it is busy");
  CHECK(reply->folders(1).job() == "job-1");
  REQUIRE(job().checkpoints().size() == 1);
  CHECK(job().checkpoints()[0].step() == 80);

  RestartCoordinator();
  CHECK(job().checkpoints().size() == 1);
}

TEST_CASE_METHOD(Collecting, "folders of jobs that are forgotten are looked at, too",
                 "[coordinator][unit]") {
  Train();
  checkpoints.roots = std::vector<std::string>{"/checkpoints/job-1", "/checkpoints/old-7"};
  REQUIRE(Collect("", false, /*finished=*/true).ok());
  REQUIRE(checkpoints.sweeps.size() == 2);
  CHECK(checkpoints.sweeps[1].root == "/checkpoints/old-7");
  CHECK(checkpoints.sweeps[1].keep == 0);
  CHECK(checkpoints.sweeps[1].why == "its job is forgotten");
  // Not where one job is meant.
  REQUIRE(Collect("job").ok());
  CHECK(checkpoints.sweeps.size() == 3);
}

TEST_CASE_METHOD(Collecting, "a job that is submitted while folders are listed is not forgotten",
                 "[coordinator][unit]") {
  Train();
  checkpoints.lists_hang = true;
  checkpoints.roots = std::vector<std::string>{"/checkpoints/job-1", "/checkpoints/other-2"};
  v1::CollectCheckpointsRequest request;
  request.set_finished(true);
  core->CollectCheckpoints(request, [](const auto&) {});
  REQUIRE(Submit(Spec("other"))->job().id() == "other-2");
  REQUIRE(checkpoints.waiting.size() == 1);
  checkpoints.waiting[0]();
  Settle();

  REQUIRE(checkpoints.sweeps.size() == 2);
  for (const Checkpoints::Sweep& sweep : checkpoints.sweeps) CHECK(sweep.keep == 3);
}

TEST_CASE("A job's folder is no forgotten one for a / at the end of the coordinator's",
          "[coordinator][unit]") {
  Coordinator::Options options;
  options.jobs.checkpoints_directory = "/checkpoints/";
  testing::Cluster cluster(options);
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(testing::Cluster::Spec()).ok());
  cluster.checkpoints.roots =
      std::vector<std::string>{"/checkpoints/job-1", "/checkpoints/another-0"};
  v1::CollectCheckpointsRequest request;
  request.set_finished(true);
  cluster.core->CollectCheckpoints(request, [](const auto&) {});
  cluster.Settle();

  REQUIRE(cluster.checkpoints.sweeps.size() == 2);
  CHECK(cluster.checkpoints.sweeps[0].keep == 3);
  CHECK(cluster.checkpoints.sweeps[1].root == "/checkpoints/another-0");
  // It may be another way to that of the job that runs.
  CHECK(cluster.checkpoints.sweeps[1].live == std::set<std::string>{"job-1"});
}

TEST_CASE_METHOD(Collecting, "a folder that cannot be read, or does not answer, is named",
                 "[coordinator][unit]") {
  Train();
  checkpoints.swept = Unknown("list /checkpoints/job-1: Input/output error");
  const auto failed = Collect();
  REQUIRE(failed->folders_size() == 1);
  CHECK(failed->folders(0).failure() == "list /checkpoints/job-1: Input/output error");

  checkpoints.hangs = true;
  std::optional<Result<v1::CollectCheckpointsReply>> answer;
  core->CollectCheckpoints({}, [&](auto reply) { answer = std::move(reply); });
  Pass(Millis(560'000), Millis(1'000));
  CHECK_FALSE(answer);
  Pass(Millis(20'000), Millis(1'000));
  REQUIRE(answer);
  CHECK((*answer)->folders(0).directory() == "/checkpoints/job-1");
  CHECK((*answer)->folders(0).failure().find("it has not answered") != std::string::npos);
}

TEST_CASE_METHOD(Collecting, "a folder that answers when nobody waits any more changes nothing",
                 "[coordinator][unit]") {
  Train();
  checkpoints.lists_hang = true;
  int answers = 0;
  core->CollectCheckpoints({}, [&](auto reply) {
    ++answers;
    REQUIRE(reply.ok());
    CHECK(reply->folders(0).directory() == "/checkpoints");
  });
  Pass(Millis(580'000), Millis(1'000));
  REQUIRE(answers == 1);

  if (GENERATE(true, false)) checkpoints.roots = Unknown("Stale file handle");
  for (const auto& answer : checkpoints.waiting) answer();
  Settle();

  CHECK(answers == 1);
  CHECK(checkpoints.sweeps.empty());
}

TEST_CASE_METHOD(Collecting, "checkpoints of a job that nobody knows are an error",
                 "[coordinator][unit]") {
  CHECK(Collect("nobody").status().code() == StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::coordinator
