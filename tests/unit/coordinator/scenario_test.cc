// A whole job, with nothing going wrong or only what its user did.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

TEST_CASE("A job runs from its submission to its end", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(2, 2);

  const auto submitted = cluster.Submit(Cluster::Spec());
  REQUIRE(submitted.ok());
  CHECK(submitted->job().id() == "job-1");
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.drivers.started == std::vector<std::string>{"job-1"});
  const auto opened = cluster.Open();
  REQUIRE(opened.ok());
  CHECK(opened->training_examples() == 1'000);
  CHECK(opened->plan().total_steps() == 100);
  CHECK(opened->plan().ps_size() == 2);
  CHECK(opened->workers() == 2);
  REQUIRE(opened->plan().variables_size() == 1);
  CHECK(opened->plan().variables(0).initializer().kind() == v1::INITIALIZER_KIND_GLOROT_UNIFORM);

  REQUIRE(cluster.Schedule(1, 100).ok());
  CHECK(cluster.at({"worker", 0}).given.size() == 2);
  CHECK_FALSE(cluster.JoinNow()->done());
  cluster.WorkAll();
  const auto joined = cluster.JoinNow();
  REQUIRE(joined.ok());
  CHECK(joined->done());
  CHECK(joined->steps_done() == 100);
  CHECK(cluster.Save(100).ok());
  REQUIRE(cluster.checkpoints.manifests.size() == 1);
  CHECK(cluster.checkpoints.manifests[0].files_size() == 2);
  REQUIRE(cluster.FinishJob().ok());

  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(cluster.Reasons() ==
        std::vector<std::string>{"JOB_RUNNING", "CHECKPOINT_SAVED", "JOB_SUCCEEDED"});
  CHECK(cluster.at({"worker", 1}).commands.back().has_stop_executor());
  CHECK(cluster.at({"ps", 1}).commands.back().has_drop_job());
}

TEST_CASE("A job that waits says for whom, and begins when they come", "[coordinator][unit]") {
  Cluster cluster;
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());

  CHECK(cluster.State() == v1::JOB_STATE_PENDING);
  CHECK(cluster.job().record().job().reason() == "WAITING_FOR_TASKS");
  CHECK(cluster.job().record().job().message() == "waiting for a parameter server, a worker");

  (void)cluster.Join({"ps", 0});
  CHECK(cluster.job().record().job().message() == "waiting for a worker");
  (void)cluster.Join({"worker", 0});
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A ps of the cluster spec that never comes is named after a while, and the job held",
          "[coordinator][unit]") {
  Coordinator::Options options;
  options.tasks = {{"ps", 0}, {"ps", 1}, {"worker", 0}};
  Cluster cluster(options);
  (void)cluster.Join({"ps", 0});
  (void)cluster.Join({"worker", 0});
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());

  CHECK(cluster.job().record().job().message() == "waiting for ps:1 (has never registered)");
  cluster.Pass(Millis(61'000));
  REQUIRE(cluster.EventOf("TASKS_MISSING"));
  CHECK(cluster.EventOf("TASKS_MISSING")->fields().at("missing") == "ps:1 (has never registered)");
  CHECK(cluster.State() == v1::JOB_STATE_PENDING);

  (void)cluster.Join({"ps", 1});
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("Submitting is idempotent by name, another spec of that name is refused",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());

  const auto again = cluster.Submit(Cluster::Spec());
  REQUIRE(again.ok());
  CHECK(again->existing());
  CHECK(again->job().id() == "job-1");
  v1::JobSpec other = Cluster::Spec();
  other.set_batch_size(20);
  CHECK(cluster.Submit(other).status().code() == StatusCode::kAlreadyExists);
}

TEST_CASE("What was edited is a new job once the one of its name has ended",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  v1::JobSpec edited = Cluster::Spec();
  edited.set_batch_size(20);
  const Status running = cluster.Submit(edited).status();
  CHECK(running.code() == StatusCode::kAlreadyExists);
  CHECK(Message(running).find("job-1 (RUNNING)") != std::string::npos);
  REQUIRE(cluster.FinishJob().ok());

  const auto fresh = cluster.Submit(edited);

  REQUIRE(fresh.ok());
  CHECK_FALSE(fresh->existing());
  CHECK(fresh->job().id() == "job-2");
  CHECK(cluster.job().id() == "job-2");  // the name is the new one's
  CHECK(cluster.State("job-1") == v1::JOB_STATE_SUCCEEDED);
  CHECK(cluster.Submit(edited)->existing());
  cluster.RestartCoordinator();
  CHECK(cluster.job().id() == "job-2");
}

TEST_CASE("A forgotten job does not take its name from a newer one", "[coordinator][unit]") {
  Coordinator::Options options;
  options.keep_jobs = 1;
  Cluster cluster(options);
  cluster.JoinAll(1, 1);
  v1::JobSpec spec = Cluster::Spec();
  for (const std::uint32_t batch : {10, 20, 30}) {
    spec.set_batch_size(batch);
    REQUIRE(cluster.Submit(spec).ok());
    REQUIRE(cluster.FinishJob().ok());
    cluster.Settle();
  }

  CHECK_FALSE(cluster.core->Find("job-1").ok());
  REQUIRE(cluster.core->Find("job").ok());
  CHECK(cluster.job().id() == "job-3");
}

TEST_CASE("What a worker finds wrong with a spec refuses the submission", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  cluster.at({"worker", 0}).check.add_problems("forward:2:12: undefined value y");

  const auto refused = cluster.Submit(Cluster::Spec());
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(refused.status()) == "forward:2:12: undefined value y");
  const auto tried = cluster.Submit(Cluster::Spec(), /*dry_run=*/true);
  REQUIRE(tried.ok());
  CHECK(tried->problems_size() == 1);
  CHECK_FALSE(cluster.core->Find("job").ok());
}

TEST_CASE("A host that lacks the data is named", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  cluster.at({"worker", 0}).refuse[v1::Command::kProbeData] = NotFound("/data/x.idx is not there");

  const auto refused = cluster.Submit(Cluster::Spec());
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(refused.status()) == "worker:0 on host: /data/x.idx is not there");
}

TEST_CASE("A user's error in a closure is the driver's, once, and fails the job",
          "[coordinator][unit][spec][CCE-01]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 10).ok());
  FakeDaemon& worker = cluster.at({"worker", 0});
  REQUIRE(worker.given.size() == 2);

  worker.Finish(worker.given[0], InvalidArgument("loss is nan"));
  CHECK_FALSE(cluster.JoinNow()->done());  // the other one is still in flight
  worker.Finish(worker.given[1]);
  const auto joined = cluster.JoinNow();
  CHECK(joined.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(joined.status()) == "closure 1 on worker:0: loss is nan");
  CHECK(cluster.JoinNow()->done());

  REQUIRE(cluster.FinishJob(joined.status()).ok());
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().record().job().error().message() == "closure 1 on worker:0: loss is nan");
}

TEST_CASE("A stopped job saves and ends cancelled, submitted again it goes on from there",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 40).ok());
  cluster.WorkAll();

  cluster.job().Stop(Millis(0));
  CHECK(cluster.State() == v1::JOB_STATE_STOPPING);
  CHECK(cluster.JoinNow()->stop_requested());
  REQUIRE(cluster.Save(40).ok());
  REQUIRE(cluster.FinishJob(Cancelled("stopped as asked")).ok());
  CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
  cluster.DriverExits("exit code 0", true);

  const auto again = cluster.Submit(Cluster::Spec());
  REQUIRE(again.ok());
  CHECK(again->existing());
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Open()->plan().start_step() == 40);
  CHECK(cluster.drivers.started.size() == 2);
}

TEST_CASE("A failed job that is submitted again goes on from its newest checkpoint",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 40);
  REQUIRE(cluster.FinishJob(InvalidArgument("loss is nan")).ok());
  REQUIRE(cluster.State() == v1::JOB_STATE_FAILED);

  const auto again = cluster.Submit(Cluster::Spec());

  REQUIRE(again->existing());
  CHECK(again->before() == v1::JOB_STATE_FAILED);
  CHECK(cluster.Submit(Cluster::Spec())->before() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Open()->plan().start_step() == 40);
  CHECK_FALSE(cluster.Described().has_error());
  CHECK(cluster.EventOf("JOB_RESUMED"));
}

TEST_CASE("A job that is submitted with --restart begins at step 0, its checkpoints are set aside",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 40);
  const auto early = cluster.Submit(Cluster::Spec(), false, /*restart=*/true);
  CHECK(early.status().code() == StatusCode::kFailedPrecondition);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  auto report = cluster.As<v1::ReportProgressRequest>();
  report.mutable_evaluation()->set_step(40);
  REQUIRE(cluster.job().ReportProgress(report).ok());
  REQUIRE(cluster.FinishJob().ok());

  const auto again = cluster.Submit(Cluster::Spec(), false, /*restart=*/true);

  REQUIRE(again.ok());
  CHECK(again->job().id() == "job-1");
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  const auto opened = cluster.Open();
  CHECK(opened->plan().start_step() == 0);
  CHECK(opened->steps_done() == 0);
  CHECK_FALSE(opened->has_evaluated_step());
  CHECK(cluster.job().checkpoints().empty());
  REQUIRE(cluster.EventOf("CHECKPOINTS_SET_ASIDE"));
  CHECK(cluster.EventOf("CHECKPOINTS_SET_ASIDE")->fields().at("directory") == "set-aside-1");
  // Once: after a loss it goes back to what it has saved since.
  cluster.TrainAndSave(1, 10);
  cluster.RestartCoordinator();
  cluster.JoinAll(1, 1, "boot-2");
  CHECK(cluster.Open()->plan().start_step() == 10);
}

TEST_CASE("A driver that does not stop is not waited for beyond the grace", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());

  cluster.job().Stop(Millis(2'000));
  cluster.Pass(Millis(1'900));
  CHECK(cluster.State() == v1::JOB_STATE_STOPPING);
  cluster.Pass(Millis(200));
  CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
  CHECK(cluster.drivers.stopped == std::vector<std::string>{"job-1"});
}

TEST_CASE("A watcher is answered by a change, and at its limit without one",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  const std::uint64_t version = cluster.job().record().job().version();
  int answers = 0;

  cluster.job().Watch(version, Millis(5'000), [&](const auto&) { ++answers; });
  cluster.Pass(Millis(4'900));
  CHECK(answers == 0);
  cluster.Pass(Millis(200));
  CHECK(answers == 1);
  cluster.job().Watch(version, Millis(5'000), [&](const auto& job) {
    ++answers;
    CHECK(job->state() == v1::JOB_STATE_STOPPING);
  });
  cluster.job().Stop(Millis(0));
  cluster.Settle();
  CHECK(answers == 2);
}

TEST_CASE("Jobs beyond the limit wait for their turn", "[coordinator][unit]") {
  Coordinator::Options options;
  options.max_running_jobs = 1;
  Cluster cluster(options);
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec("job")).ok());
  REQUIRE(cluster.Submit(Cluster::Spec("second")).ok());

  CHECK(cluster.State("second") == v1::JOB_STATE_PENDING);
  CHECK(cluster.job("second").record().job().reason() == "WAITING_FOR_SLOT");
  REQUIRE(cluster.FinishJob().ok());
  cluster.Settle();
  CHECK(cluster.State("second") == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A full disk costs the checkpoint, not the job", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.at({"ps", 0}).refuse[v1::Command::kSaveVariables] = ResourceExhausted("no space left");

  CHECK(cluster.Save(0).code() == Cluster::kSaveFailed);
  CHECK(cluster.EventOf("CHECKPOINT_FAILED"));
  CHECK(cluster.checkpoints.discarded == std::vector<std::string>{"step-0"});
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Schedule(1, 2).ok());
}

TEST_CASE("A job whose last checkpoint could not be saved has failed, and says what is left",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Save(0).ok());
  REQUIRE(cluster.Schedule(1, 100).ok());
  cluster.WorkAll();
  cluster.at({"ps", 0}).refuse[v1::Command::kSaveVariables] = ResourceExhausted("no space left");
  REQUIRE_FALSE(cluster.Save(100).ok());
  auto report = cluster.As<v1::ReportProgressRequest>();
  report.mutable_progress()->set_phase("saving a checkpoint");
  REQUIRE(cluster.job().ReportProgress(report).ok());
  REQUIRE(cluster.FinishJob().ok());

  const v1::Job job = cluster.Described();
  CHECK(job.state() == v1::JOB_STATE_FAILED);
  CHECK(job.reason() == "CHECKPOINT_FAILED");
  CHECK(job.error().code() == static_cast<int>(StatusCode::kResourceExhausted));
  CAPTURE(job.message());
  CHECK(job.message().find("no space left") != std::string::npos);
  CHECK(job.message().find("the newest checkpoint is of step 0") != std::string::npos);
  CHECK(job.progress().phase().empty());
}

TEST_CASE("What is found wrong only after the job was accepted is a refusal too",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  FakeDaemon& worker = cluster.at({"worker", 0});
  // The check at the submission is interrupted, as a lost stream would do it.
  worker.refuse[v1::Command::kProbeData] = Unavailable("the stream was lost");
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  worker.refuse[v1::Command::kProbeData] = DataLoss("data: /x.tfrecord: fails its checksum");
  cluster.Pass(Millis(5'000));

  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.job().record().job().reason() == "REFUSED");
  CHECK(cluster.job().record().job().error().code() == 3);

  // Once it has run, an error is a failure.
  worker.refuse.clear();
  REQUIRE(cluster.Submit(Cluster::Spec("second")).ok());
  worker.refuse[v1::Command::kStartExecutor] = DataLoss("data: /x.tfrecord: was changed");
  worker.ExecutorExits("signal SIGKILL", /*from_outside=*/true);
  cluster.Pass(Millis(1'000));
  CHECK(cluster.State("second") == v1::JOB_STATE_FAILED);
  CHECK(cluster.job("second").record().job().reason() == "FAILED");
}

TEST_CASE("A job that was accepted and cannot be checked because every disk is full says so once",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  FakeDaemon& worker = cluster.at({"worker", 0});
  worker.refuse[v1::Command::kProbeData] = Unavailable("the stream was lost");
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  worker.refuse[v1::Command::kProbeData] = ResourceExhausted("no space left on device");
  cluster.Pass(Millis(5'000));

  CHECK(cluster.job().record().job().reason() == "CHECK_INTERRUPTED");
  const auto told = [&] {
    std::vector<std::string> codes;
    const v1::Job described = cluster.job().Describe();
    for (const v1::Event& event : described.events()) {
      if (event.reason() == "CHECK_INTERRUPTED") codes.push_back(event.fields().at("code"));
    }
    return codes;
  };
  CHECK(told() == std::vector<std::string>{"UNAVAILABLE", "RESOURCE_EXHAUSTED"});
  CHECK(cluster.EventOf("CHECK_INTERRUPTED")->message().find("no space left on device") !=
        std::string::npos);

  worker.refuse.clear();
  cluster.Pass(Millis(5'000));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(told().size() == 2);
}

TEST_CASE("A model whose check does not end is refused, not tried for ever",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  cluster.at({"worker", 0}).refuse[v1::Command::kCheckJob] =
      DeadlineExceeded("the check of the model has not ended within 60 s");

  const auto submitted = cluster.Submit(Cluster::Spec());
  CHECK(submitted.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(submitted.status()).find("not ended within 60 s") != std::string::npos);
  CHECK_FALSE(cluster.core->Find("job").ok());
}

TEST_CASE("A check whose files take long to come to the worker is awaited while they come",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  auto& worker = cluster.at({"worker", 0});
  worker.needs_files = {v1::Command::kCheckJob};
  v1::SubmitJobRequest request;
  *request.mutable_spec() = Cluster::Spec();
  std::optional<Result<v1::SubmitJobReply>> answer;
  const auto submit = [&] {
    answer.reset();
    cluster.core->Submit(request, [&](Result<v1::SubmitJobReply> reply) { answer = reply; });
  };

  SECTION("it is taken before whoever submits it gives up, and checked when they are there") {
    submit();
    cluster.Pass(Millis(118'000));
    REQUIRE(answer);
    CHECK(answer->ok());
    cluster.Pass(Millis(600'000), Millis(1'000));
    CHECK(cluster.job().record().job().reason() == "CHECKING");
    worker.FilesCome();
    cluster.Pass(Millis(1'000));
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  }
  SECTION("a dry run says that they come") {
    request.set_dry_run(true);
    submit();
    cluster.Pass(Millis(118'000));
    REQUIRE(answer);
    CHECK(Message(answer->status()) ==
          "the workers still fetch the job's files after 115 s; they go on: ask again in a while");
    CHECK(answer->status().code() == StatusCode::kDeadlineExceeded);
  }
  SECTION("of files that do not come it is given up") {
    worker.files_come = false;
    submit();
    cluster.Pass(Millis(111'000));
    REQUIRE(answer);
    CHECK(Message(answer->status()).find("worker:0 has not answered for 110 s") !=
          std::string::npos);
  }
}

TEST_CASE("Logs of a task that there is not are NOT_FOUND, those of a silent task are empty",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());

  const auto read = [&](const std::string& task) {
    Result<LogStore::Page> answer = Unknown("no answer");
    cluster.core->ReadLogs("job", {.task = task}, [&](auto page) { answer = std::move(page); });
    cluster.Settle();
    return answer;
  };

  CHECK(read("worker:0").ok());
  CHECK(read("trainer").ok());
  const auto none = read("worker:7");
  CHECK(none.status().code() == StatusCode::kNotFound);
  CHECK(Message(none.status()).find("ps:0, worker:0") != std::string::npos);
}

TEST_CASE("Checkpoints are listed newest first", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Save(0).ok());
  cluster.TrainAndSave(1, 2);

  v1::ListCheckpointsReply listed;
  cluster.core->ListCheckpoints("job", [&](auto reply) { listed = *reply; });
  cluster.Settle();
  REQUIRE(listed.checkpoints_size() == 2);
  CHECK(listed.checkpoints(0).step() == 2);
  CHECK(listed.checkpoints(1).step() == 0);
}

TEST_CASE("A checkpoint that failed on the way is forgotten when a later one is good",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.at({"ps", 0}).refuse[v1::Command::kSaveVariables] = ResourceExhausted("no space left");
  REQUIRE_FALSE(cluster.Save(0).ok());
  cluster.at({"ps", 0}).refuse.clear();
  cluster.TrainAndSave(1, 100);
  REQUIRE(cluster.FinishJob().ok());

  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
}

TEST_CASE("What an ended job shows is its own: its steps, its closures, its events",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 3).ok());
  cluster.WorkAll();
  // The heartbeat counts what the worker's process has done in its life.
  v1::DaemonMessage beat;
  beat.mutable_heartbeat()->set_closures_done(900);
  cluster.at({"worker", 0}).Say(beat);
  const v1::Job running = cluster.Described();
  REQUIRE(cluster.FinishJob(InvalidArgument("nan")).ok());

  const v1::Job job = cluster.Described();
  CHECK(job.progress().step() == 3);
  CHECK(job.progress().total_steps() == 100);
  std::uint64_t closures = 0;
  for (const v1::TaskState& task : job.tasks()) {
    if (task.task().type() == "worker") closures += task.closures_done();
  }
  CHECK(closures == 3);
  // They are read from the journal now.
  REQUIRE(job.events_size() == running.events_size() + 1);
  CHECK(job.events(0).reason() == "JOB_RUNNING");
  CHECK(job.events(job.events_size() - 1).reason() == "JOB_FAILED");
}

TEST_CASE("Of ended jobs the newest are remembered, also over a restart", "[coordinator][unit]") {
  Coordinator::Options options;
  options.keep_jobs = 2;
  Cluster cluster(options);
  cluster.JoinAll(1, 1);
  for (const char* name : {"a", "b", "c", "d"}) {
    REQUIRE(cluster.Submit(Cluster::Spec(name)).ok());
    cluster.job(name).Stop(Millis(10));
    cluster.Pass(Millis(200));
    REQUIRE(cluster.State(name) == v1::JOB_STATE_CANCELLED);
  }
  CHECK_FALSE(cluster.core->Find("a").ok());
  CHECK_FALSE(cluster.core->Find("b-2").ok());
  CHECK(cluster.core->List().jobs_size() == 2);
  CHECK(cluster.journal->LoadJobs()->size() == 2);
  CHECK(cluster.journal->LoadEvents("a-1")->empty());

  cluster.RestartCoordinator();
  cluster.JoinAll(1, 1);
  CHECK(cluster.core->List().jobs_size() == 2);
  const v1::Job old = cluster.Described("c");
  CHECK(old.events(old.events_size() - 1).reason() == "JOB_CANCELLED");
  REQUIRE(cluster.Submit(Cluster::Spec("e")).ok());
  CHECK(cluster.job("e").id() == "e-5");  // numbers are never used again

  // A stopped job that goes on has its story from the beginning.
  REQUIRE(cluster.Submit(Cluster::Spec("c")).ok());
  cluster.Pass(Millis(200));
  const v1::Job again = cluster.Described("c");
  CHECK(again.events(0).reason() == old.events(0).reason());
  CHECK(again.events_size() > old.events_size());
  for (int i = 0; i < again.events_size(); ++i) {
    CHECK(again.events(i).sequence() == static_cast<std::uint64_t>(i) + 1);
  }
}

TEST_CASE("Who is expected and missing is named without a cluster spec", "[coordinator][unit]") {
  Coordinator::Options options;
  options.expected = {{"ps", 0}, {"ps", 1}, {"worker", 0}, {"worker", 1}};
  Cluster cluster(options);
  (void)cluster.Join({"ps", 0});
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());

  CHECK(cluster.job().record().job().message() ==
        "waiting for ps:1 (has never registered), one of worker:0 (has never registered), "
        "worker:1 (has never registered)");
  (void)cluster.Join({"worker", 7});  // nobody is turned away
  CHECK(cluster.joined.ok());
  CHECK(cluster.job().record().job().message() == "waiting for ps:1 (has never registered)");
  // And after the wait the job makes do with who is there.
  cluster.Pass(Millis(61'000));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.EventOf("PS_REPLACED"));
}
}  // namespace
}  // namespace muster::coordinator
