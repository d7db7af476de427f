// A coordinator and executors for tests of the driver, which do what a test says.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "common/messages/steps.h"
#include "services/trainer/trainer.h"
#include "tests/support/fake_scheduler.h"

namespace muster::trainer {

// A coordinator and executors that run a few closures at every look, and can be told to misbehave.
// Like the real ones they know where the view is, whoever drives.
class ScriptedCoordinator : public DriverApi, public Closures {
 public:
  explicit ScriptedCoordinator(FakeScheduler& clock) : clock_(clock) {
    opened.mutable_spec()->set_batch_size(10);
    opened.mutable_plan()->set_view(1);
    opened.set_training_examples(95);  // 10 steps an epoch, the last one short
    opened.mutable_plan()->set_total_steps(40);
  }

  Result<v1::OpenJobReply> OpenJob() override {
    MUSTER_TRY(Enter());
    ++opens;
    if (!open_error.ok()) return open_error;
    const std::uint64_t start = opened.plan().start_step();
    queue_.clear();
    opened.set_scheduled(std::max(scheduled_, start));
    opened.set_steps_done(std::max(steps_done_, start));
    opened.set_saved_step(saved.empty() ? start : std::max(saved.back(), start));
    opened.clear_saving_step();
    if (saving_) opened.set_saving_step(*saving_);
    opened.clear_evaluated_step();
    if (!evaluations.empty()) opened.set_evaluated_step(evaluations.back().step());
    if (!reports.empty()) *opened.mutable_progress() = reports.back();
    return Leave(opened);
  }
  // What a driver before this one has left.
  void Begun(std::uint64_t done, std::uint64_t scheduled) {
    steps_done_ = done;
    scheduled_ = scheduled;
  }
  Closures& Open(const v1::OpenJobReply&) { return *this; }

  Status Schedule(v1::ClosureKind kind, std::uint64_t first, std::uint64_t last,
                  std::uint64_t) override {
    MUSTER_TRY(Enter());
    if (saving_) return Internal("closures of a driver that does not know of the save");
    for (std::uint64_t id = first; id <= last; ++id) {
      v1::Closure& closure = queue_.emplace_back();
      closure.set_kind(kind);
      closure.set_id(id);
    }
    if (kind == v1::CLOSURE_KIND_TRAIN) scheduled_ = std::max(scheduled_, last);
    most_queued = std::max(most_queued, queue_.size());
    return Leave();
  }
  Result<std::vector<v1::ClosureResult>> Take(Millis limit) override {
    MUSTER_TRY(Enter());
    clock_.Advance(limit);
    std::vector<v1::ClosureResult> results;
    for (auto left = EndIn(limit); left > 0 && !queue_.empty(); --left) {
      const v1::Closure closure = queue_.front();
      queue_.pop_front();
      if (closure.kind() == v1::CLOSURE_KIND_TRAIN && fail_at_step == closure.id()) {
        return InvalidArgument("loss is nan at step {}", closure.id());
      }
      results.push_back(Run(closure));
      if (lose_a_result && closure.kind() == v1::CLOSURE_KIND_EVALUATE) {
        lose_a_result = false;
        results.back().clear_metrics();
      }
    }
    return Leave(results);
  }
  // One has begun.
  void StopGiving() override {
    if (queue_.empty()) return;
    if (queue_.front().kind() != v1::CLOSURE_KIND_TRAIN) return queue_.resize(1);
    const std::uint64_t last = StepsOf(opened.plan()).CutFrom(queue_.front().id());
    while (queue_.back().id() > last) queue_.pop_back();
  }
  bool stands_still() override { return queue_.empty(); }
  std::size_t workers() override {
    ++asked_for_workers;
    return executors;
  }
  bool stop_requested() const override {
    return (stop_at_step > 0 && steps_done_ >= stop_at_step) ||
           (stop_at_scored > 0 && scored >= stop_at_scored);
  }
  v1::ModelReport Position() override {
    v1::ModelReport report;
    report.set_done(steps_done_);
    return report;
  }
  v1::ModelReport Report() override { return Position(); }

  Result<v1::BeginEvaluationReply> BeginEvaluation(ViewId view, const v1::ModelReport&) override {
    MUSTER_TRY(Enter());
    MUSTER_TRY(CheckView(view));
    if (buffers_late > 0 && buffers_late-- > 0) return ResourceExhausted("not yet");
    return Leave(v1::BeginEvaluationReply());
  }
  Result<v1::SaveCheckpointReply> SaveCheckpoint(ViewId view, std::uint64_t step,
                                                 const v1::ModelReport&) override {
    MUSTER_TRY(Enter());
    MUSTER_TRY(CheckView(view));
    if (step == leave_view_at_step) {
      opened.mutable_plan()->set_view(opened.plan().view() + 1);
      return Aborted("the job goes back to a checkpoint");
    }
    if (!queue_.empty()) return FailedPrecondition("{} closures are queued", queue_.size());
    if (step != steps_done_) return FailedPrecondition("{} steps are done", steps_done_);
    if (disk_full) {
      v1::SaveCheckpointReply reply;
      reply.set_failure("no space");
      return Leave(reply);
    }
    if (saved.empty() || saved.back() != step) {
      saving_ = step;
      // The driver dies while servers write.
      MUSTER_TRY(Leave());
      saving_.reset();
      saved.push_back(step);
      saved_at.push_back(clock_.Now());
    }
    return Leave(v1::SaveCheckpointReply());
  }
  Result<v1::ReportProgressReply> Report(ViewId view, const v1::JobProgress& progress,
                                         const v1::EvaluationResult* evaluation) override {
    MUSTER_TRY(Enter());
    MUSTER_TRY(CheckView(view));
    reports.push_back(progress);
    if (evaluation != nullptr) evaluations.push_back(*evaluation);
    return Leave(v1::ReportProgressReply());
  }
  Status Finish(ViewId view, const Status& status, const v1::EvaluationResult* evaluation,
                const v1::ModelReport&) override {
    MUSTER_TRY(Enter());
    MUSTER_TRY(CheckView(view));
    finished = status;
    if (evaluation != nullptr) final_evaluation = *evaluation;
    return Leave();
  }

  v1::OpenJobReply opened;
  Status open_error;
  int opens = 0;
  // The driver is killed before its nth call arrives, or before its nth answer does. 0: never.
  int die_at_call = 0, die_at_answer = 0;
  bool killed = false;
  std::uint64_t fail_at_step = 0, leave_view_at_step = 0, stop_at_step = 0, stop_at_scored = 0;
  std::uint64_t scored = 0;  // batches of evaluations
  bool lose_a_result = false;
  int buffers_late = 0;
  bool disk_full = false;
  std::size_t most_queued = 0;
  std::size_t executors = 8;
  int asked_for_workers = 0;
  // A closure takes all of them so long; zero: seven closures end at each look.
  Millis closure_takes{0};
  std::multiset<std::uint64_t> trained;
  std::vector<std::uint64_t> saved;
  std::vector<TimePoint> saved_at;
  std::vector<v1::JobProgress> reports;
  std::vector<v1::EvaluationResult> evaluations;
  std::optional<Status> finished;
  std::optional<v1::EvaluationResult> final_evaluation;

 private:
  // A dead driver gets through to nobody.
  Status Killed() const { return Unauthenticated("this driver was killed"); }
  Status Enter() {
    if (die_at_call > 0 && --die_at_call == 0) killed = true;
    return killed ? Killed() : Ok();
  }
  Status Leave() {
    if (die_at_answer > 0 && --die_at_answer == 0) killed = true;
    return killed ? Killed() : Ok();
  }
  template <class Reply>
  Result<Reply> Leave(Reply reply) {
    MUSTER_TRY(Leave());
    return reply;
  }
  Status CheckView(ViewId view) const {
    if (view != ViewId(opened.plan().view())) return Aborted("view {} has gone", view);
    return Ok();
  }
  // How many closures end in a look of this length.
  Millis::rep EndIn(Millis look) {
    if (closure_takes.count() == 0) return 7;
    worked_ += queue_.empty() ? Millis(0) : look;
    const Millis::rep ended = worked_ / closure_takes;
    worked_ %= closure_takes;
    return ended;
  }
  v1::ClosureResult Run(const v1::Closure& closure) {
    v1::ClosureResult result;
    *result.mutable_closure() = closure;
    std::uint64_t examples = 10;
    if (closure.kind() == v1::CLOSURE_KIND_TRAIN) {
      trained.insert(closure.id());
      ++steps_done_;
    } else {
      examples =
          std::min<std::uint64_t>(10, opened.evaluation_examples() - (closure.id() - 1) * 10);
      result.mutable_metrics()->set_correct(examples);
      ++scored;
    }
    result.mutable_metrics()->set_examples(examples);
    result.mutable_metrics()->set_loss_sum(2.0 * static_cast<double>(examples));
    result.set_tcp_bytes(100);
    return result;
  }

  FakeScheduler& clock_;
  std::uint64_t steps_done_ = 0, scheduled_ = 0;
  std::optional<std::uint64_t> saving_;
  Millis worked_{0};
  std::deque<v1::Closure> queue_;
};

// Drives it, as another process would after a death.
inline Trainer MakeTrainer(DriverApi& api, ScriptedCoordinator& closures, FakeScheduler& clock,
                           Trainer::Options options = {.window = 16}) {
  return Trainer(
      api,
      [&closures](const v1::OpenJobReply& opened) -> Closures& { return closures.Open(opened); },
      clock, std::move(options));
}

struct Fixture {
  FakeScheduler clock;
  ScriptedCoordinator coordinator{clock};
  Trainer trainer =
      MakeTrainer(coordinator, coordinator, clock, {.window = 16, .sleep = [this](Millis time) {
                                                      clock.Advance(time);
                                                      ++rests;
                                                      if (rests == free_after)
                                                        coordinator.disk_full = false;
                                                    }});
  int rests = 0;
  int free_after = 0;

  std::vector<std::uint64_t> TrainedOnce() const {
    return {coordinator.trained.begin(), coordinator.trained.end()};
  }
};

}  // namespace muster::trainer
