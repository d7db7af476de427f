#include "services/trainer/trainer.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/messages/steps.h"
#include "services/trainer/patient_driver.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/unit/services/trainer/scripted_coordinator.h"

namespace muster::trainer {
namespace {

std::vector<std::uint64_t> Steps(std::uint64_t from, std::uint64_t to) {
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = from; step <= to; ++step) steps.push_back(step);
  return steps;
}

TEST_CASE_METHOD(Fixture, "every step is scheduled once, within the window, and the job succeeds",
                 "[trainer][unit]") {
  REQUIRE(trainer.Run().ok());

  CHECK(TrainedOnce() == Steps(1, 40));
  CHECK(coordinator.most_queued <= 16);
  CHECK(coordinator.finished.value().ok());
  CHECK(coordinator.saved == std::vector<std::uint64_t>{40});
  // Nothing is saved by time.
  CHECK(coordinator.asked_for_workers == 0);
}

TEST_CASE_METHOD(Fixture, "checkpoints are cut where asked, with nothing in flight",
                 "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_checkpoint()->set_every_steps(15);

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.saved == std::vector<std::uint64_t>{15, 30, 40});
}

TEST_CASE_METHOD(Fixture, "what an evaluator evaluates the driver does not", "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_evaluation()->mutable_data();
  coordinator.opened.mutable_spec()->mutable_evaluation()->set_evaluator(true);
  coordinator.opened.set_evaluation_examples(30);

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.evaluations.empty());
  CHECK(coordinator.finished);
  REQUIRE_FALSE(coordinator.saved.empty());
}

TEST_CASE_METHOD(Fixture, "synchronous steps are not cut through, whatever asks for a cut",
                 "[trainer][unit]") {
  coordinator.opened.mutable_plan()->set_total_steps(38);
  coordinator.opened.mutable_plan()->mutable_steps()->set_gradients(4);
  coordinator.opened.mutable_spec()->mutable_checkpoint()->set_every_steps(10);
  coordinator.opened.mutable_spec()->mutable_evaluation()->mutable_data();
  coordinator.opened.mutable_spec()->mutable_evaluation()->set_every_epochs(1);
  coordinator.opened.set_evaluation_examples(30);
  SECTION("checkpoints and evaluations that are due") {
    REQUIRE(trainer.Run().ok());
    CHECK(TrainedOnce() == Steps(1, 38));
    CHECK(coordinator.saved == std::vector<std::uint64_t>{12, 20, 32, 38});
    REQUIRE(coordinator.evaluations.size() == 3);
    CHECK(coordinator.evaluations[0].step() == 12);
  }
  SECTION("a stop") {
    coordinator.stop_at_step = 13;
    REQUIRE(trainer.Run().ok());
    REQUIRE_FALSE(coordinator.saved.empty());
    CHECK(coordinator.saved.back() % 4 == 0);
  }
  SECTION("a driver that takes over at a cut") {
    for (int call = 1; call < 40; ++call) {
      coordinator.killed = false;
      coordinator.die_at_answer = call;
      (void)trainer.Run();
      if (coordinator.finished) break;
    }
    coordinator.killed = false;
    coordinator.die_at_answer = 0;
    if (!coordinator.finished) REQUIRE(trainer.Run().ok());
    CHECK(TrainedOnce() == Steps(1, 38));
    for (const std::uint64_t step : coordinator.saved) CHECK((step % 4 == 0 || step == 38));
  }
}

TEST_CASE_METHOD(Fixture, "checkpoints are cut by time, with nothing in flight",
                 "[trainer][unit]") {
  // A round of the coordinator is 50 ms and 7 steps.
  coordinator.opened.set_training_examples(20'000);
  coordinator.opened.mutable_plan()->set_total_steps(2000);
  coordinator.opened.mutable_plan()->set_checkpoint_seconds(5);

  REQUIRE(trainer.Run().ok());

  CHECK(TrainedOnce() == Steps(1, 2000));
  CHECK(coordinator.saved.size() == 3);  // 14.3 s
  CHECK(coordinator.saved.back() == 2000);
  CHECK(coordinator.saved[0] >= 700);
  CHECK(coordinator.saved[0] <= 700 + 16);
}

TEST_CASE_METHOD(Fixture, "steps that take long are saved in time, too", "[trainer][unit]") {
  coordinator.executors = 1;
  coordinator.closure_takes = Millis(5'000);
  coordinator.opened.mutable_plan()->set_checkpoint_seconds(60);
  const TimePoint begin = clock.Now();

  REQUIRE(MakeTrainer(coordinator, coordinator, clock, {}).Run().ok());

  CHECK(TrainedOnce() == Steps(1, 40));
  REQUIRE(coordinator.saved_at.size() == 4);  // 200 s
  CHECK(coordinator.saved_at[0] - begin >= std::chrono::seconds(60));
  CHECK(coordinator.saved_at[0] - begin < std::chrono::seconds(80));
  CHECK(coordinator.saved_at[1] - coordinator.saved_at[0] < std::chrono::seconds(80));
}

TEST_CASE_METHOD(Fixture, "a save by time that fails is tried again after as long a time",
                 "[trainer][unit]") {
  coordinator.opened.set_training_examples(20'000);
  coordinator.opened.mutable_plan()->set_total_steps(1000);
  coordinator.opened.mutable_plan()->set_checkpoint_seconds(1);
  coordinator.disk_full = true;

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.finished.value().ok());
  CHECK(TrainedOnce() == Steps(1, 1000));
}

TEST_CASE_METHOD(Fixture, "an evaluation longer than the time between saves does not hold the job",
                 "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_checkpoint()->set_every_steps(10);
  coordinator.opened.mutable_spec()->mutable_evaluation()->mutable_data();
  coordinator.opened.mutable_spec()->mutable_evaluation()->set_every_epochs(1);
  coordinator.opened.set_evaluation_examples(3000);  // 300 batches: 2 s
  coordinator.opened.mutable_plan()->set_checkpoint_seconds(1);

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.finished.value().ok());
  CHECK(coordinator.saved == std::vector<std::uint64_t>{10, 20, 30, 40});
}

TEST_CASE_METHOD(Fixture, "a driver whose view has ended ends, and ends nothing",
                 "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_checkpoint()->set_every_steps(10);
  coordinator.leave_view_at_step = 20;

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.opens == 1);
  CHECK(coordinator.saved == std::vector<std::uint64_t>{10});
  CHECK_FALSE(coordinator.finished.has_value());
}

TEST_CASE_METHOD(Fixture, "what may have been begun is done before anything is saved or stopped",
                 "[trainer][unit]") {
  coordinator.stop_at_step = 1;
  coordinator.Begun(3, 9);

  REQUIRE(trainer.Run().ok());

  CHECK(TrainedOnce() == Steps(4, 9));
  CHECK(coordinator.saved == std::vector<std::uint64_t>{9});
  CHECK(coordinator.finished.value().code() == StatusCode::kCancelled);
}

TEST_CASE_METHOD(Fixture, "a user's error fails the job with its message", "[trainer][unit]") {
  coordinator.fail_at_step = 12;

  REQUIRE(trainer.Run().ok());

  CHECK(ToString(coordinator.finished.value()) == "INVALID_ARGUMENT: loss is nan at step 12");
  CHECK(coordinator.saved.empty());
}

TEST_CASE_METHOD(Fixture, "a stop saves what was done and ends as cancelled", "[trainer][unit]") {
  coordinator.stop_at_step = 14;

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.finished.value().code() == StatusCode::kCancelled);
  REQUIRE(coordinator.saved.size() == 1);
  CHECK(TrainedOnce() == Steps(1, coordinator.saved[0]));
  // Seven steps end at a time here. What had not begun by then is not done.
  CHECK(coordinator.saved[0] == 15);
}

TEST_CASE_METHOD(Fixture, "a full disk costs the checkpoint and not the job", "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_checkpoint()->set_every_steps(10);
  coordinator.disk_full = true;

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.finished.value().ok());
  CHECK(TrainedOnce() == Steps(1, 40));
  CHECK(rests == 4);  // at the last one alone
}

TEST_CASE_METHOD(Fixture, "the last checkpoint waits for room on a full disk", "[trainer][unit]") {
  coordinator.disk_full = true;
  free_after = 2;

  REQUIRE(trainer.Run().ok());

  CHECK(rests == 2);
  CHECK(coordinator.saved == std::vector<std::uint64_t>{40});
}

TEST_CASE_METHOD(Fixture, "every held-out example is scored once, after each epoch and at the end",
                 "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_evaluation()->mutable_data();
  coordinator.opened.mutable_spec()->mutable_evaluation()->set_every_epochs(1);
  coordinator.opened.mutable_spec()->add_metrics(v1::METRIC_ACCURACY);
  coordinator.opened.set_evaluation_examples(333);

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.evaluations.size() == 3);
  CHECK(coordinator.evaluations[0].step() == 10);
  CHECK(coordinator.final_evaluation.value().examples() == 333);
  CHECK(coordinator.final_evaluation->accuracy() == 1.0);
  CHECK(coordinator.final_evaluation->loss() == 2.0);
}

TEST_CASE_METHOD(Fixture, "a stop ends an evaluation, and saves what was done before it",
                 "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_evaluation()->mutable_data();
  coordinator.opened.mutable_spec()->mutable_evaluation()->set_every_epochs(1);
  coordinator.opened.set_evaluation_examples(3'330);
  SECTION("in the midst of the job") {
    coordinator.stop_at_scored = 10;
    REQUIRE(trainer.Run().ok());
    CHECK(coordinator.saved == std::vector<std::uint64_t>{10});
    CHECK(Message(*coordinator.finished) == "stopped as asked at step 10 of 40");
  }
  SECTION("after its last step") {
    coordinator.stop_at_scored = 3 * 333 + 10;
    REQUIRE(trainer.Run().ok());
    CHECK(coordinator.saved == std::vector<std::uint64_t>{40});
    CHECK(Message(*coordinator.finished).starts_with("stopped as asked in the evaluation after"));
  }
  CHECK(coordinator.finished->code() == StatusCode::kCancelled);
  CHECK(coordinator.scored <= coordinator.stop_at_scored + 14);
  CHECK_FALSE(coordinator.final_evaluation.has_value());
}

TEST_CASE_METHOD(Fixture, "an evaluation waits for the buffers to evaluate with",
                 "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_evaluation()->mutable_data();
  coordinator.opened.set_evaluation_examples(33);
  coordinator.buffers_late = 3;
  REQUIRE(trainer.Run().ok());
  CHECK(coordinator.final_evaluation.value().examples() == 33);
}

TEST_CASE_METHOD(Fixture, "an evaluation that does not add up fails the job and says what came",
                 "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_evaluation()->mutable_data();
  coordinator.opened.set_evaluation_examples(33);
  coordinator.lose_a_result = true;
  REQUIRE(trainer.Run().ok());
  CHECK(ToString(coordinator.finished.value()) ==
        "INTERNAL: evaluation at step 40 scored 23 examples in 4 batches; there are 33");
}

// Kills a driver at its nth call, or at its nth answer, and lets another one go on. False: it ended
// before that.
bool KillAndGoOn(int n, bool before, std::uint64_t stop_at) {
  Fixture f;
  v1::JobSpec& spec = *f.coordinator.opened.mutable_spec();
  spec.mutable_checkpoint()->set_every_steps(15);
  spec.mutable_evaluation()->mutable_data();
  spec.mutable_evaluation()->set_every_epochs(1);
  f.coordinator.opened.set_evaluation_examples(95);
  f.coordinator.stop_at_step = stop_at;
  (before ? f.coordinator.die_at_call : f.coordinator.die_at_answer) = n;
  (void)f.trainer.Run();
  if (!f.coordinator.killed) return false;
  const bool finished = f.coordinator.finished.has_value();
  f.coordinator.killed = false;

  CAPTURE(n, before, stop_at);
  if (!finished) REQUIRE(MakeTrainer(f.coordinator, f.coordinator, f.clock).Run().ok());

  REQUIRE(f.coordinator.finished.has_value());
  CAPTURE(ToString(*f.coordinator.finished));
  if (stop_at > 0) {
    CHECK(f.coordinator.finished->code() == StatusCode::kCancelled);
    CHECK(f.coordinator.saved.back() >= stop_at);
    CHECK(f.TrainedOnce() == Steps(1, f.coordinator.saved.back()));
    return true;
  }
  CHECK(f.coordinator.finished->ok());
  CHECK(f.TrainedOnce() == Steps(1, 40));
  CHECK(f.coordinator.saved == std::vector<std::uint64_t>{15, 30, 40});
  std::vector<std::uint64_t> evaluated;
  for (const v1::EvaluationResult& one : f.coordinator.evaluations) {
    evaluated.push_back(one.step());
    CHECK(one.examples() == 95);
  }
  CHECK(evaluated == std::vector<std::uint64_t>{10, 20, 30});
  CHECK(f.coordinator.final_evaluation.value().examples() == 95);
  return true;
}

TEST_CASE(
    "a driver may be killed at any call: the next one goes on from there, and nothing is "
    "trained, saved or evaluated twice",
    "[trainer][unit]") {
  for (const std::uint64_t stop_at : {0, 15, 22}) {
    for (const bool before : {true, false}) {
      int n = 1;
      while (KillAndGoOn(n, before, stop_at)) ++n;
      CHECK(n > 10);
    }
  }
}

TEST_CASE_METHOD(Fixture, "totals go on where the driver before has left them", "[trainer][unit]") {
  coordinator.die_at_answer = 12;
  (void)trainer.Run();
  coordinator.killed = false;
  const std::uint64_t before = coordinator.reports.back().tcp_bytes();
  REQUIRE(MakeTrainer(coordinator, coordinator, clock).Run().ok());
  CHECK(coordinator.reports.back().tcp_bytes() >= before);
  CHECK(coordinator.reports.back().tcp_bytes() == 40 * 100);
}

TEST_CASE_METHOD(Fixture, "a driver that was replaced ends and reports nothing",
                 "[trainer][unit]") {
  coordinator.open_error = FailedPrecondition("another process drives job job-1 now: end");
  CHECK(trainer.Run().ok());
  CHECK_FALSE(coordinator.finished.has_value());
}

// A coordinator that does not answer now and then.
class Flaky : public ScriptedCoordinator {
 public:
  using ScriptedCoordinator::ScriptedCoordinator;
  Result<v1::ReportProgressReply> Report(ViewId view, const v1::JobProgress& progress,
                                         const v1::EvaluationResult* evaluation) override {
    MUSTER_TRY(Answer());
    return ScriptedCoordinator::Report(view, progress, evaluation);
  }
  Result<v1::SaveCheckpointReply> SaveCheckpoint(ViewId view, std::uint64_t step,
                                                 const v1::ModelReport& report) override {
    MUSTER_TRY(Answer());
    return ScriptedCoordinator::SaveCheckpoint(view, step, report);
  }

 private:
  Status Answer() {
    if (silent_ == 0) {
      if (++calls_ % 3 != 0) return Ok();
      silent_ = 5;
    }
    return --silent_ % 2 == 0 ? Unavailable("connection refused")
                              : DeadlineExceeded("Deadline Exceeded");
  }
  int calls_ = 0;
  int silent_ = 0;
};

TEST_CASE("a coordinator that does not answer is asked again, and is never the job's failure",
          "[trainer][unit]") {
  FakeScheduler clock;
  Flaky coordinator(clock);
  coordinator.opened.mutable_spec()->mutable_checkpoint()->set_every_steps(10);
  std::vector<Millis> rests;
  std::vector<std::string> said;
  PatientDriver patient(coordinator,
                        {.sleep = [&](Millis rest) { rests.push_back(rest); },
                         .say = [&](const std::string& line) { said.push_back(line); }});

  REQUIRE(MakeTrainer(patient, coordinator, clock).Run().ok());

  CHECK(coordinator.finished.value().ok());
  CHECK(coordinator.trained.size() == 40);
  REQUIRE(rests.size() > 4);
  CHECK(rests[0] == Millis(100));
  CHECK(rests[3] == Millis(800));
  CHECK(*std::max_element(rests.begin(), rests.end()) <= Millis(1'000));
  REQUIRE(said.size() >= 2);
  CHECK(said[0].find("asking again") != std::string::npos);
  CHECK(said[1] == "the coordinator answers again");
}

TEST_CASE_METHOD(Fixture, "progress tells step, rate, loss and the time that is left",
                 "[trainer][unit]") {
  coordinator.opened.mutable_plan()->set_total_steps(400);

  REQUIRE(trainer.Run().ok());

  REQUIRE(coordinator.reports.size() > 3);
  const v1::JobProgress& progress = coordinator.reports[2];
  CHECK(progress.loss() == 2.0);
  CHECK(progress.examples_per_second() == Approx(7 * 10 / 0.05).epsilon(0.2));
  const double steps_left = static_cast<double>(400 - progress.step());
  CHECK(progress.eta_seconds() == Approx(steps_left / (7 / 0.05)).epsilon(0.2));
  CHECK(progress.epoch() == Approx(static_cast<double>(progress.step()) / 10));
}

TEST_CASE_METHOD(Fixture, "a job that was stopped before it was opened needs no driver",
                 "[trainer][unit]") {
  coordinator.open_error = Cancelled("stopped");

  CHECK(trainer.Run().ok());
  CHECK_FALSE(coordinator.finished.has_value());
}

}  // namespace
}  // namespace muster::trainer
