#include "services/trainer/trainer.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace muster::trainer {
namespace {

// A coordinator that runs a few closures at every join and can be told to misbehave.
class ScriptedCoordinator : public DriverApi {
 public:
  explicit ScriptedCoordinator(FakeScheduler& clock) : clock_(clock) {
    opened.mutable_spec()->set_batch_size(10);
    opened.mutable_plan()->set_view(1);
    opened.set_training_examples(95);  // 10 steps an epoch, the last one short
    opened.mutable_plan()->set_total_steps(40);
  }

  Result<v1::OpenJobReply> OpenJob() override {
    ++opens;
    if (!open_error.ok()) return open_error;
    steps_done_ = opened.plan().start_step();
    queue_.clear();
    return opened;
  }
  Status Schedule(std::uint64_t view, const std::vector<v1::Closure>& closures) override {
    MUSTER_TRY(CheckView(view));
    for (const v1::Closure& closure : closures) queue_.push_back(closure);
    most_queued = std::max(most_queued, queue_.size());
    return Ok();
  }
  Result<v1::JoinReply> Join(std::uint64_t view, Millis timeout) override {
    clock_.Advance(timeout);
    MUSTER_TRY(CheckView(view));
    for (int i = 0; i < 7 && !queue_.empty(); ++i) {
      const v1::Closure closure = queue_.front();
      queue_.erase(queue_.begin());
      if (fail_at_step == closure.id() && closure.kind() == v1::CLOSURE_KIND_TRAIN) {
        return InvalidArgument("loss is nan at step {}", closure.id());
      }
      if (roll_back_at_step == closure.id()) {
        roll_back_at_step = 0;
        opened.mutable_plan()->set_view(opened.plan().view() + 1);
        opened.mutable_plan()->set_start_step(saved.empty() ? 0 : saved.back());
        return Aborted("the job has gone back to step {}", opened.plan().start_step());
      }
      Run(closure);
    }
    v1::JoinReply reply;
    reply.set_done(queue_.empty());
    reply.set_steps_done(steps_done_);
    reply.set_stop_requested(stop_at_step > 0 && steps_done_ >= stop_at_step);
    return reply;
  }
  Result<v1::FetchReply> Fetch(std::uint64_t view, v1::ClosureKind kind) override {
    MUSTER_TRY(CheckView(view));
    v1::FetchReply reply;
    for (const v1::ClosureResult& result : results_[kind]) *reply.add_results() = result;
    results_[kind].clear();
    return reply;
  }
  Result<v1::SaveCheckpointReply> SaveCheckpoint(std::uint64_t view, std::uint64_t step) override {
    MUSTER_TRY(CheckView(view));
    if (!queue_.empty()) return FailedPrecondition("{} closures are queued", queue_.size());
    if (disk_full) return ResourceExhausted("no space");
    saved.push_back(step);
    return v1::SaveCheckpointReply();
  }
  Result<v1::ReportProgressReply> Report(std::uint64_t view, const v1::JobProgress& progress,
                                         const v1::EvaluationResult* evaluation) override {
    MUSTER_TRY(CheckView(view));
    reports.push_back(progress);
    if (evaluation != nullptr) evaluations.push_back(*evaluation);
    return v1::ReportProgressReply();
  }
  Status Finish(std::uint64_t view, const Status& status,
                const v1::EvaluationResult* evaluation) override {
    MUSTER_TRY(CheckView(view));
    finished = status;
    if (evaluation != nullptr) final_evaluation = *evaluation;
    return Ok();
  }

  v1::OpenJobReply opened;
  Status open_error;
  int opens = 0;
  std::uint64_t fail_at_step = 0, roll_back_at_step = 0, stop_at_step = 0;
  bool disk_full = false;
  std::size_t most_queued = 0;
  std::multiset<std::uint64_t> trained;
  std::vector<std::uint64_t> saved;
  std::vector<v1::JobProgress> reports;
  std::vector<v1::EvaluationResult> evaluations;
  std::optional<Status> finished;
  std::optional<v1::EvaluationResult> final_evaluation;

 private:
  Status CheckView(std::uint64_t view) const {
    if (view != opened.plan().view()) return Aborted("view {} has gone", view);
    return Ok();
  }
  void Run(const v1::Closure& closure) {
    v1::ClosureResult result;
    *result.mutable_closure() = closure;
    std::uint64_t examples = 10;
    if (closure.kind() == v1::CLOSURE_KIND_TRAIN) {
      trained.insert(closure.id());
      ++steps_done_;
    } else {
      const std::uint64_t batch = closure.id() & 0xffffffff;
      examples = std::min<std::uint64_t>(10, opened.evaluation_examples() - (batch - 1) * 10);
      result.mutable_metrics()->set_correct(examples);
    }
    result.mutable_metrics()->set_examples(examples);
    result.mutable_metrics()->set_loss_sum(2.0 * static_cast<double>(examples));
    results_[closure.kind()].push_back(result);
  }

  FakeScheduler& clock_;
  std::uint64_t steps_done_ = 0;
  std::vector<v1::Closure> queue_;
  std::map<v1::ClosureKind, std::vector<v1::ClosureResult>> results_;
};

struct Fixture {
  FakeScheduler clock;
  ScriptedCoordinator coordinator{clock};
  Trainer trainer{coordinator, clock, {.window = 16, .sleep = [this](Millis time) {
                                         clock.Advance(time);
                                         ++rests;
                                         if (rests == free_after) coordinator.disk_full = false;
                                       }}};
  int rests = 0;
  int free_after = 0;

  std::vector<std::uint64_t> TrainedOnce() const {
    return {coordinator.trained.begin(), coordinator.trained.end()};
  }
};

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
}

TEST_CASE_METHOD(Fixture, "checkpoints are cut where asked, with nothing in flight",
                 "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_checkpoint()->set_every_steps(15);

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.saved == std::vector<std::uint64_t>{15, 30, 40});
}

TEST_CASE_METHOD(Fixture, "a job that went back goes on from its checkpoint in the new view",
                 "[trainer][unit]") {
  coordinator.opened.mutable_spec()->mutable_checkpoint()->set_every_steps(10);
  coordinator.roll_back_at_step = 25;

  REQUIRE(trainer.Run().ok());

  CHECK(coordinator.opens == 2);
  CHECK(coordinator.saved == std::vector<std::uint64_t>{10, 20, 30, 40});
  CHECK(coordinator.trained.count(20) == 1);
  CHECK(coordinator.trained.count(24) == 2);
  CHECK(coordinator.finished.value().ok());
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
  CHECK(coordinator.saved[0] < 40);
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
