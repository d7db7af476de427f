// Drivers that are killed, fall silent, wake up again: the one that takes the place of another goes
// on where the job is, and is the only one that is obeyed.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;

struct Driven : Cluster {
  Driven() {
    JoinAll(1, 1);
    REQUIRE(Submit(Spec()).ok());
    REQUIRE(Open().ok());
  }
  void Train(std::uint64_t from, std::uint64_t to) {
    REQUIRE(Schedule(from, to).ok());
    WorkAll();
  }
  // kill -9, and the next one is there.
  void KillDriver() {
    const std::size_t before = drivers.started.size();
    DriverExits("signal SIGKILL");
    Pass(Millis(1'000));
    REQUIRE(drivers.started.size() == before + 1);
  }
};

TEST_CASE_METHOD(Driven, "a new driver is told where the view is", "[coordinator][unit]") {
  Train(1, 40);
  REQUIRE(Save(40).ok());
  auto report = As<v1::ReportProgressRequest>();
  report.mutable_progress()->set_tcp_bytes(700);
  report.mutable_evaluation()->set_step(40);
  REQUIRE(job().ReportProgress(report).ok());
  REQUIRE(Schedule(41, 60).ok());
  at({"worker", 0}).Work();
  const std::uint64_t done = JoinNow()->steps_done();
  REQUIRE(done > 40);

  KillDriver();
  const auto opened = Open();

  REQUIRE(opened.ok());
  CHECK(opened->plan().start_step() == 0);
  CHECK(opened->plan().view() == 1);
  CHECK(opened->scheduled() == 60);
  CHECK(opened->steps_done() == done);
  CHECK(opened->saved_step() == 40);
  CHECK_FALSE(opened->has_saving_step());
  CHECK(opened->evaluated_step() == 40);
  CHECK(opened->progress().tcp_bytes() == 700);
  const auto lost = EventOf("DRIVER_LOST");
  REQUIRE(lost);
  CHECK(lost->fields().at("how") == "signal SIGKILL");
  CHECK(lost->fields().at("pid") == "4001");
  const auto back = EventOf("DRIVER_REPLACED");
  REQUIRE(back);
  CHECK(back->fields().at("pid") == "4002");
  CHECK(back->fields().at("step") == std::to_string(done));
  CHECK(std::stoi(back->fields().at("gap_ms")) >= 500);
}

TEST_CASE_METHOD(Driven, "a new driver waits for the checkpoint that the old one asked for",
                 "[coordinator][unit]") {
  Train(1, 10);
  at({"ps", 0}).refuse[v1::Command::kSaveVariables] = Unavailable("busy");
  const auto first = BeginSave(10);
  Settle();

  KillDriver();
  const auto opened = Open();
  REQUIRE(opened.ok());
  CHECK(opened->saving_step() == 10);
  const auto second = BeginSave(10);
  // Closures wait until it is saved: it is a cut.
  REQUIRE(Schedule(11, 12).ok());
  CHECK(at({"worker", 0}).given.empty());
  CHECK(second->code() == StatusCode::kUnknown);
  at({"ps", 0}).refuse.clear();
  Pass(Millis(1'000));

  CHECK(first->ok());
  CHECK(second->ok());
  CHECK(checkpoints.manifests.size() == 1);
  CHECK(at({"worker", 0}).given.size() == 2);
}

TEST_CASE_METHOD(Driven, "a step that was saved is not saved again", "[coordinator][unit]") {
  Train(1, 10);
  REQUIRE(Save(10).ok());

  KillDriver();
  REQUIRE(Open()->saved_step() == 10);
  CHECK(Save(10).ok());
  CHECK(checkpoints.manifests.size() == 1);
}

TEST_CASE_METHOD(Driven, "a driver that was replaced is not obeyed when it wakes up",
                 "[coordinator][unit]") {
  const Incarnation old = job().driver();
  REQUIRE(Schedule(1, 20).ok());
  KillDriver();
  REQUIRE(job().driver() != old);
  CHECK(Open()->scheduled() == 20);
  CHECK(Open()->steps_done() == 0);

  v1::FromProgram late;
  late.mutable_model()->set_done(20);
  core->OnDriverMessage(job().id(), old, late);
  CHECK(Open()->steps_done() == 0);
  Status evaluates = Ok();
  job().BeginEvaluation(As<v1::BeginEvaluationRequest>(old),
                        [&](auto reply) { evaluates = reply.status(); });
  CHECK(evaluates.code() == StatusCode::kAborted);
  CHECK(job().ReportProgress(As<v1::ReportProgressRequest>(old)).status().code() ==
        StatusCode::kAborted);
  CHECK(Finish(As<v1::FinishJobRequest>(old)).code() == StatusCode::kAborted);
  CHECK(Open(old).status().code() == StatusCode::kFailedPrecondition);
  CHECK(Open(Incarnation()).status().code() == StatusCode::kFailedPrecondition);
  // And its end is no news.
  core->OnDriverExit(job().id(), old, false, "signal SIGKILL");
  CHECK(drivers.started.size() == 2);
  CHECK(State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE_METHOD(Driven, "a silent driver is killed and replaced", "[coordinator][unit]") {
  silent_drivers = true;
  REQUIRE(Open().ok());
  Pass(Millis(10'000));
  REQUIRE(JoinNow().ok());
  Pass(Millis(10'000));
  CHECK(drivers.killed.empty());
  Pass(Millis(8'000));

  CHECK(drivers.killed == std::vector<std::string>{"job-1"});
  CHECK(drivers.started.size() == 2);
  const auto stuck = EventOf("DRIVER_STUCK");
  REQUIRE(stuck);
  CHECK(stuck->fields().at("pid") == "4001");
  CHECK(std::stoi(stuck->fields().at("silence_ms")) >= 13'500);
  CHECK(State() == v1::JOB_STATE_RUNNING);
  REQUIRE(Open().ok());
  CHECK(EventOf("DRIVER_REPLACED"));
}

TEST_CASE_METHOD(Driven, "a driver that waits for an answer is not silent", "[coordinator][unit]") {
  Train(1, 10);
  checkpoints.commits_hang = true;
  const auto saved = BeginSave(10);
  silent_drivers = true;
  Pass(Millis(120'000));
  CHECK(saved->code() == StatusCode::kUnknown);
  CHECK(drivers.killed.empty());
  CHECK(drivers.started.size() == 1);
}

TEST_CASE_METHOD(Driven, "drivers that are silent one after another fail the job, and it says so",
                 "[coordinator][unit]") {
  silent_drivers = true;
  Pass(Millis(200'000));
  CHECK(State() == v1::JOB_STATE_FAILED);
  CHECK(drivers.started.size() == 5);
  const std::string error = job().record().job().error().message();
  CAPTURE(error);
  CHECK(error.find("lost 5 times without getting on") != std::string::npos);
  CHECK(error.find("asked nothing for") != std::string::npos);
}

TEST_CASE_METHOD(Driven, "drivers that are killed while the job gets on are replaced without end",
                 "[coordinator][unit]") {
  for (std::uint64_t step = 1; step <= 20; ++step) {
    Train(step, step);
    KillDriver();
  }
  CHECK(State() == v1::JOB_STATE_RUNNING);
  CHECK(Open()->steps_done() == 20);
}

TEST_CASE_METHOD(Driven, "an evaluation of steps that were lost does not hold",
                 "[coordinator][unit]") {
  Train(1, 10);
  REQUIRE(Save(10).ok());
  Train(11, 20);
  auto report = As<v1::ReportProgressRequest>();
  report.mutable_evaluation()->set_step(20);
  REQUIRE(job().ReportProgress(report).ok());
  CHECK(Open()->evaluated_step() == 20);

  Kill({"ps", 0});
  Pass(Millis(1'000));
  (void)Join({"ps", 0}, "boot-2");

  const auto opened = Open();
  REQUIRE(opened.ok());
  CHECK(opened->plan().start_step() == 10);
  CHECK(opened->scheduled() == 10);
  CHECK(opened->saved_step() == 10);
  CHECK_FALSE(opened->has_evaluated_step());
}

TEST_CASE_METHOD(Driven, "a job that is stopped between two drivers is saved by the next one",
                 "[coordinator][unit]") {
  Train(1, 10);
  DriverExits("signal SIGKILL");
  job().Stop(Millis(0));
  CHECK(State() == v1::JOB_STATE_STOPPING);
  Pass(Millis(1'000));
  REQUIRE(Open().ok());
  CHECK(JoinNow()->stop_requested());
  REQUIRE(Save(10).ok());
  REQUIRE(FinishJob(Cancelled("stopped as asked")).ok());
  CHECK(State() == v1::JOB_STATE_CANCELLED);
}

TEST_CASE_METHOD(Driven, "a job that is submitted again right after a stop begins at once",
                 "[coordinator][unit]") {
  Train(1, 10);
  job().Stop(Millis(0));
  REQUIRE(Save(10).ok());
  const Incarnation old = job().driver();
  REQUIRE(FinishJob(Cancelled("stopped as asked")).ok());

  // The old driver has not ended yet.
  REQUIRE(Submit(Spec()).ok());
  CHECK(State() == v1::JOB_STATE_RUNNING);
  CHECK(drivers.started.size() == 2);
  core->OnDriverExit(job().id(), old, true, "exit code 0");
  CHECK_FALSE(EventOf("DRIVER_LOST"));
  CHECK(Open()->plan().start_step() == 10);
}

TEST_CASE_METHOD(Driven, "a job that was stopped while it waited for a retry begins when submitted",
                 "[coordinator][unit]") {
  at({"ps", 0}).refuse[v1::Command::kCreateVariables] = Unavailable("busy");
  REQUIRE(Submit(Spec("second")).ok());
  REQUIRE(job("second").record().job().message().find("tries again") != std::string::npos);
  job("second").Stop(Millis(0));
  REQUIRE(State("second") == v1::JOB_STATE_CANCELLED);
  at({"ps", 0}).refuse.clear();

  REQUIRE(Submit(Spec("second")).ok());

  CHECK(State("second") == v1::JOB_STATE_RUNNING);
}

TEST_CASE_METHOD(Driven, "a checkpoint is asked for with news that end the job",
                 "[coordinator][unit]") {
  const auto news_of = [this](v1::ModelReport& report, int times) {
    for (int i = 0; i < times; ++i) {
      v1::ClosureNews::Returned& returned = *report.add_news()->mutable_returned();
      *returned.mutable_task() = ToProto({"worker", 0});
      returned.mutable_closure()->set_kind(v1::CLOSURE_KIND_TRAIN);
      returned.mutable_closure()->set_id(7);
      returned.set_why("ps:0 is out of reach");
    }
    v1::ExecutorWork& work = *report.add_executors();
    work.set_executor(at({"worker", 0}).start.program().incarnation());
    work.set_closures(times == 1 ? 500 : 0);
  };
  v1::FromProgram first;
  news_of(*first.mutable_model(), 19);
  core->OnDriverMessage(job().id(), job().driver(), first);
  Pass(Millis(61'000));
  REQUIRE(State() == v1::JOB_STATE_RUNNING);

  auto request = As<v1::SaveCheckpointRequest>();
  news_of(*request.mutable_report(), 1);
  Status answer = Unknown("no answer");
  job().SaveCheckpoint(request, [&](const auto& reply) { answer = reply.status(); });

  CHECK(State() == v1::JOB_STATE_FAILED);
  CHECK(answer.code() == StatusCode::kFailedPrecondition);
}

TEST_CASE_METHOD(Driven, "the end of a job may be told twice", "[coordinator][unit]") {
  Train(1, 100);
  REQUIRE(Save(100).ok());
  const Incarnation driver = job().driver();
  REQUIRE(FinishJob().ok());
  auto again = As<v1::FinishJobRequest>(driver);
  CHECK(Finish(again).ok());
  again.set_driver(driver.value() + 1);
  CHECK(Finish(again).code() == StatusCode::kFailedPrecondition);
}

TEST_CASE_METHOD(Driven, "a driver that has said how it ends is not silent while that is weighed",
                 "[coordinator][unit]") {
  testing::FakeDaemon& worker = at({"worker", 0});
  REQUIRE(Schedule(1, 5).ok());
  worker.needs_files = {v1::Command::kProbeData};
  worker.files_come = false;
  const auto judging = [this] { return job().record().job().reason() == "POISON_CLOSURE"; };
  for (int crash = 0; crash < 10 && !judging(); ++crash) {
    Pass(Millis(5'000));
    worker.ExecutorExits("signal SIGSEGV");
    Settle();
  }
  REQUIRE(judging());

  const auto answer = BeginFinish(Internal("a closure is given up"));
  silent_drivers = true;
  Pass(Millis(20'000));
  CHECK(answer->code() == StatusCode::kUnknown);
  CHECK_FALSE(EventOf("DRIVER_STUCK"));

  worker.FilesCome();
  Settle();
  CHECK(answer->ok());
  CHECK(State() == v1::JOB_STATE_FAILED);
  CHECK(EventOf("POISON_CLOSURE"));
}

}  // namespace
}  // namespace muster::coordinator
