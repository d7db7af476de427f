// Checkpoints that evaluator:0 evaluates beside training.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

constexpr auto kEvaluate = v1::Command::kEvaluateCheckpoint;

struct Evaluated : Cluster {
  explicit Evaluated(Coordinator::Options with = {}) : Cluster(std::move(with)) { JoinAll(1, 1); }
  static v1::JobSpec Asking(const std::string& name = "job") {
    v1::JobSpec spec = Spec(name);
    *spec.mutable_evaluation()->mutable_data() = spec.data();
    spec.mutable_evaluation()->set_evaluator(true);
    return spec;
  }
  FakeDaemon& JoinEvaluator(const std::string& boot_id = "boot-1") {
    return Join(kEvaluator, boot_id);
  }
  // Steps that evaluator:0 was asked for.
  std::vector<std::uint64_t> Asked() {
    std::vector<std::uint64_t> steps;
    for (const v1::Command& command : at(kEvaluator).commands) {
      if (command.body_case() != kEvaluate) continue;
      steps.push_back(command.evaluate_checkpoint().plan().start_step());
    }
    return steps;
  }
  // The steps of checkpoints that are kept and evaluated.
  std::vector<std::uint64_t> WithFigures() {
    std::vector<std::uint64_t> steps;
    const v1::Job described = Described();
    for (const v1::CheckpointInfo& info : described.checkpoints()) {
      if (info.has_evaluation()) steps.push_back(info.evaluation().step());
    }
    return steps;
  }
  using Steps = std::vector<std::uint64_t>;
};

TEST_CASE_METHOD(Evaluated, "evaluator:0 evaluates each checkpoint while the job trains",
                 "[coordinator][unit]") {
  JoinEvaluator();
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 40);

  const v1::EvaluateCheckpoint asked = at(kEvaluator).commands.back().evaluate_checkpoint();
  CHECK(asked.directory() == "step-40");
  CHECK(asked.plan().variables(0).name() == "w");
  CHECK(asked.spec().name() == "job");
  const auto told = EventOf("EVALUATED");
  REQUIRE(told);
  CHECK(told->fields().at("step") == "40");
  CHECK(told->fields().at("loss") == "0.5");
  CHECK(job().record().job().evaluation().step() == 40);
  CHECK(State() == v1::JOB_STATE_RUNNING);

  TrainAndSave(41, 100);
  CHECK((WithFigures() == Steps{40, 100}));
  REQUIRE(FinishJob().ok());
  Settle();

  CHECK(State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(Described().message() == "done: 100 steps");
  CHECK(job().record().job().evaluation().step() == 100);
}

TEST_CASE("a slow evaluator holds up neither training nor the jobs after it",
          "[coordinator][unit]") {
  Coordinator::Options options;
  options.max_running_jobs = 1;
  Evaluated cluster(options);
  cluster.JoinEvaluator().slow_evaluations = true;
  REQUIRE(cluster.Submit(Evaluated::Asking()).ok());
  REQUIRE(cluster.Open().ok());
  cluster.TrainAndSave(1, 50);
  cluster.TrainAndSave(51, 100);
  REQUIRE(cluster.FinishJob().ok());
  cluster.Settle();
  REQUIRE(cluster.Submit(Cluster::Spec("next")).ok());
  cluster.Pass(Millis(120'000));

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Described().reason() == "EVALUATING");
  CHECK(cluster.State("next") == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Described().tasks(0).state() == "up");
  const auto& to_ps = cluster.at({"ps", 0}).commands;
  CHECK(std::ranges::any_of(to_ps, [](const v1::Command& one) {
    return one.has_drop_job() && one.drop_job().job_id() == "job-1";
  }));
  CHECK((cluster.Asked() == std::vector<std::uint64_t>{50}));  // one at a time

  // It is asked again by another process of its own.
  cluster.Kill(kEvaluator);
  cluster.JoinEvaluator("boot-2");
  cluster.Settle();
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  CHECK((cluster.WithFigures() == std::vector<std::uint64_t>{50, 100}));
}

TEST_CASE_METHOD(Evaluated, "a killed evaluator comes back and misses no checkpoint that is kept",
                 "[coordinator][unit]") {
  JoinEvaluator().slow_evaluations = true;
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 10);
  Kill(kEvaluator);
  Pass(Millis(1'000));
  REQUIRE(EventOf("EVALUATOR_LOST"));
  CHECK(EventOf("EVALUATOR_LOST")->fields().at("step") == "10");
  TrainAndSave(11, 20);
  TrainAndSave(21, 30);
  CHECK(State() == v1::JOB_STATE_RUNNING);

  JoinEvaluator("boot-2");
  Settle();

  CHECK((Asked() == Steps{10, 20, 30}));
  CHECK((WithFigures() == Steps{10, 20, 30}));
  CHECK(EventOf("EVALUATOR_BACK"));
}

// SIGTERM to its daemon.
struct Leaving : Evaluated {
  void AskToLeave() {
    v1::DaemonMessage message;
    message.mutable_draining()->set_reason("SIGTERM");
    at(kEvaluator).Say(message);
    Settle();
  }
  // Answers what was asked last.
  void Answer(const Status& status) {
    v1::DaemonMessage message;
    v1::CommandResult& result = *message.mutable_result();
    result.set_command_id(at(kEvaluator).commands.back().id());
    result.mutable_status()->set_code(static_cast<int>(status.code()));
    result.mutable_status()->set_message(Message(status));
    result.mutable_evaluation()->set_step(Asked().back());
    at(kEvaluator).Say(message);
    Settle();
  }
  bool Told(const std::string& reason) { return EventOf(reason).has_value(); }
};

TEST_CASE_METHOD(Leaving, "an evaluator that is asked to end ends its evaluation, and is not lost",
                 "[coordinator][unit]") {
  JoinEvaluator().slow_evaluations = true;
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 10);
  TrainAndSave(11, 20);

  AskToLeave();
  CHECK(Told("TASK_DRAINING"));
  CHECK_FALSE(at(kEvaluator).released);
  Answer(Ok());
  CHECK((WithFigures() == Steps{10}));
  CHECK(at(kEvaluator).released);
  CHECK((Asked() == Steps{10}));  // nothing new is begun
  Kill(kEvaluator);
  Pass(Millis(6'000));
  CHECK_FALSE(Told("EVALUATOR_LOST"));

  JoinEvaluator("boot-2");
  CHECK((WithFigures() == Steps{10, 20}));
  CHECK(Told("EVALUATOR_BACK"));
}

TEST_CASE_METHOD(Leaving,
                 "an evaluator that leaves in an evaluation is not lost, and it is repeated",
                 "[coordinator][unit]") {
  JoinEvaluator().slow_evaluations = true;
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 10);
  AskToLeave();
  SECTION("its time to drain is over") { Answer(Unavailable("evaluator:0 is draining")); }
  SECTION("the cluster ends with it") {
    core->Drain(Millis(60'000), [] {});
    Settle();
    CHECK(at(kEvaluator).released);
  }
  Kill(kEvaluator);
  Pass(Millis(6'000));
  CHECK_FALSE(Told("EVALUATOR_LOST"));
  CHECK_FALSE(Told("EVALUATION_FAILED"));
  CHECK_FALSE(Told("EVALUATOR_AWAITED"));
  CHECK(WithFigures().empty());
}

TEST_CASE_METHOD(Leaving, "a job whose evaluator an operator took out says how to let it in",
                 "[coordinator][unit]") {
  JoinEvaluator();
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  core->TakeOut(kEvaluator, "submitter ana", [](const auto&) {});
  Settle();
  AskToLeave();
  Kill(kEvaluator);
  TrainAndSave(1, 10);
  Pass(Millis(6'000));

  const auto told = EventOf("EVALUATOR_AWAITED");
  REQUIRE(told);
  CHECK(told->message().find("`muster undrain evaluator:0` lets it in") != std::string::npos);
}

TEST_CASE_METHOD(Evaluated, "an evaluator that connects again in an evaluation is asked again",
                 "[coordinator][unit]") {
  JoinEvaluator().slow_evaluations = true;
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 10);
  REQUIRE((Asked() == Steps{10}));

  // The same process, before anybody has missed it.
  JoinEvaluator();
  Settle();

  CHECK((WithFigures() == Steps{10}));
}

TEST_CASE_METHOD(Evaluated, "without an evaluator the job trains, says so and ends",
                 "[coordinator][unit]") {
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  Pass(Millis(6'000));
  REQUIRE(EventOf("EVALUATOR_AWAITED"));
  TrainAndSave(1, 100);
  REQUIRE(FinishJob().ok());
  Pass(Millis(59'000));
  CHECK(State() == v1::JOB_STATE_RUNNING);
  Pass(Millis(2'000));

  CHECK(State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(Described().message() ==
        "done: 100 steps; 1 checkpoint is not evaluated: evaluator:0 has not come within 60 s");
  CHECK(EventOf("EVALUATION_GIVEN_UP"));
}

TEST_CASE_METHOD(Evaluated, "a coordinator that is started again evaluates what is left",
                 "[coordinator][unit]") {
  JoinEvaluator().slow_evaluations = true;
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 100);
  REQUIRE(FinishJob().ok());
  const std::size_t drivers_before = drivers.started.size();

  RestartCoordinator();
  CHECK(Described().reason() == "EVALUATING");
  JoinAll(1, 1);
  JoinEvaluator();
  Settle();
  Pass(Millis(10'000));
  CHECK_FALSE(EventOf("EVALUATOR_AWAITED"));  // it was on its way

  CHECK(State() == v1::JOB_STATE_SUCCEEDED);
  CHECK((WithFigures() == Steps{100}));
  CHECK(drivers.started.size() == drivers_before);
}

TEST_CASE_METHOD(Evaluated, "a coordinator that is started again in training goes on evaluating",
                 "[coordinator][unit]") {
  JoinEvaluator();
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 40);
  at(kEvaluator).slow_evaluations = true;
  TrainAndSave(41, 50);

  RestartCoordinator();
  JoinAll(1, 1);
  JoinEvaluator();
  Settle();

  CHECK((Asked() == Steps{50}));  // the figures of step 40 are in the journal
  CHECK((WithFigures() == Steps{40, 50}));
  CHECK(State() != v1::JOB_STATE_FAILED);
}

TEST_CASE_METHOD(Evaluated, "an evaluation that fails is tried again, and given up with its reason",
                 "[coordinator][unit]") {
  FakeDaemon& evaluator = JoinEvaluator();
  evaluator.refuse[kEvaluate] =
      Internal("the executor ended while evaluating a checkpoint: SIGSEGV");
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 10);
  Pass(Millis(2'500));
  CHECK((Asked() == Steps{10, 10, 10}));
  Pass(Millis(10'000));
  CHECK((Asked() == Steps{10, 10, 10, 10, 10}));
  CHECK(Described().checkpoints(0).unevaluated().find("SIGSEGV") != std::string::npos);

  // What the model is to blame for fails alike each time.
  evaluator.refuse[kEvaluate] = InvalidArgument("evaluation batch 1: index out of range");
  TrainAndSave(11, 20);
  Pass(Millis(10'000));
  CHECK((Asked() == Steps{10, 10, 10, 10, 10, 20}));

  // Data that is another than when the job was checked may have come damaged: once more.
  evaluator.refuse[kEvaluate] = DataLoss("/data/held-out.csv on host b: changed since");
  TrainAndSave(21, 30);
  Pass(Millis(10'000));
  CHECK((Asked() == Steps{10, 10, 10, 10, 10, 20, 30, 30}));

  evaluator.refuse.clear();
  TrainAndSave(31, 100);
  REQUIRE(FinishJob().ok());
  Settle();
  CHECK((WithFigures() == Steps{100}));
  CHECK(State() == v1::JOB_STATE_SUCCEEDED);
}

TEST_CASE_METHOD(Evaluated,
                 "a checkpoint that is found damaged while it is evaluated stays refused",
                 "[coordinator][unit]") {
  FakeDaemon& evaluator = JoinEvaluator();
  evaluator.slow_evaluations = true;
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 10);
  checkpoints.damaged.insert(10);
  Kill({"ps", 0});
  Pass(Millis(1'000));
  (void)Join({"ps", 0}, "boot-2");
  REQUIRE_FALSE(Described().checkpoints(0).refused().empty());

  v1::DaemonMessage failed;
  failed.mutable_result()->set_command_id(evaluator.commands.back().id());
  failed.mutable_result()->mutable_status()->set_code(
      static_cast<int>(StatusCode::kInvalidArgument));
  evaluator.Say(failed);
  Settle();

  CHECK_FALSE(Described().checkpoints(0).refused().empty());
}

TEST_CASE_METHOD(Evaluated, "a checkpoint that retention has removed by then is passed over",
                 "[coordinator][unit]") {
  FakeDaemon& evaluator = JoinEvaluator();
  evaluator.slow_evaluations = true;
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 10);
  checkpoints.steps.erase(10);
  TrainAndSave(11, 20);
  evaluator.slow_evaluations = false;
  v1::DaemonMessage failed;
  failed.mutable_result()->set_command_id(evaluator.commands.back().id());
  failed.mutable_result()->mutable_status()->set_code(static_cast<int>(StatusCode::kNotFound));
  evaluator.Say(failed);
  Settle();

  CHECK_FALSE(EventOf("EVALUATION_FAILED"));
  CHECK((Asked() == Steps{10, 20}));
  CHECK((WithFigures() == Steps{20}));
}

TEST_CASE_METHOD(Evaluated, "a job that begins anew has nothing of its earlier run evaluated",
                 "[coordinator][unit]") {
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 10);
  job().Stop(Millis(1));
  Pass(Millis(1'000));
  REQUIRE(State() == v1::JOB_STATE_CANCELLED);
  const bool comes_later = GENERATE(false, true);
  if (!comes_later) JoinEvaluator();

  REQUIRE(Submit(Asking(), /*dry_run=*/false, /*restart=*/true).ok());
  Pass(Millis(6'000));
  CHECK(EventOf("EVALUATOR_AWAITED").has_value() == comes_later);
  if (comes_later) JoinEvaluator();
  Settle();

  REQUIRE(EventOf("CHECKPOINTS_SET_ASIDE"));
  CHECK(Asked().empty());
  TrainAndSave(1, 20);
  CHECK((Asked() == Steps{20}));
}

TEST_CASE_METHOD(Evaluated, "a job that only waits for its evaluator ends when it is stopped",
                 "[coordinator][unit]") {
  JoinEvaluator().slow_evaluations = true;
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 100);
  REQUIRE(FinishJob().ok());
  job().Stop(Millis(1'000));
  Settle();

  CHECK(State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(Described().message().find("stopped before all checkpoints were evaluated") !=
        std::string::npos);
}

TEST_CASE_METHOD(Evaluated, "a checkpoint with which a job is stopped is evaluated when it goes on",
                 "[coordinator][unit]") {
  JoinEvaluator();
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  REQUIRE(Schedule(1, 20).ok());
  WorkAll();
  job().Stop(Millis(0));
  REQUIRE(Save(20).ok());
  CHECK(Asked().empty());
  REQUIRE(FinishJob(Cancelled("stopped as asked")).ok());
  REQUIRE(State() == v1::JOB_STATE_CANCELLED);
  CHECK(Asked().empty());
  DriverExits("exit code 0", true);

  REQUIRE(Submit(Asking()).ok());
  Settle();

  CHECK((Asked() == Steps{20}));
  CHECK((WithFigures() == Steps{20}));
}

TEST_CASE_METHOD(Evaluated, "a checkpoint that a drain saves of a stopped job is not evaluated",
                 "[coordinator][unit]") {
  JoinEvaluator();
  REQUIRE(Submit(Asking()).ok());
  REQUIRE(Open().ok());
  REQUIRE(Schedule(1, 20).ok());
  job().Stop(Millis(0));
  v1::DaemonMessage message;
  message.mutable_draining()->set_reason("SIGTERM");
  at({"ps", 0}).Say(message);
  WorkAll();

  CHECK(State() == v1::JOB_STATE_CANCELLED);
  CHECK(checkpoints.steps.size() == 1);
  CHECK(Asked().empty());
}

TEST_CASE_METHOD(Evaluated, "an evaluator takes no part in jobs that do not ask for one",
                 "[coordinator][unit]") {
  JoinEvaluator();
  REQUIRE(Submit(Spec()).ok());
  REQUIRE(Open().ok());
  TrainAndSave(1, 40);
  Kill(kEvaluator);
  Pass(Millis(5'000));
  JoinEvaluator("boot-2");
  TrainAndSave(41, 100);
  REQUIRE(FinishJob().ok());
  Settle();

  CHECK(State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(at(kEvaluator).commands.empty());
  for (const std::string& reason : Reasons()) CHECK(reason.find("EVALUATOR") == std::string::npos);
}

TEST_CASE_METHOD(Evaluated, "there is one evaluator, which cluster specs do without",
                 "[coordinator][unit]") {
  (void)Join({"evaluator", 1});
  CHECK(joined.code() == StatusCode::kFailedPrecondition);
  Coordinator::Options listed;
  listed.tasks = {{"ps", 0}, {"worker", 0}};
  Cluster other(listed);
  (void)other.Join(kEvaluator);
  CHECK(other.joined.ok());
}

}  // namespace
}  // namespace muster::coordinator
