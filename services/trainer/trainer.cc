#include "services/trainer/trainer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/step_rule.h"
#include "common/base/words.h"
#include "common/messages/evaluation_result.h"
#include "common/messages/metric_sums.h"
#include "common/messages/steps.h"
#include "services/trainer/progress.h"
#include "services/trainer/save_timer.h"

namespace muster::trainer {
namespace {

std::uint64_t StepsPerEpoch(const v1::OpenJobReply& opened) {
  const std::uint64_t batch = std::max<std::uint32_t>(1, opened.spec().batch_size());
  const std::uint64_t examples = opened.training_examples();
  return opened.spec().data().drop_remainder() ? examples / batch : (examples + batch - 1) / batch;
}

}  // namespace

struct Trainer::View {
  View(const v1::OpenJobReply& reply, Closures& made, const Clock& clock)
      : opened(reply),
        closures(made),
        number(reply.plan().view()),
        steps_per_epoch(StepsPerEpoch(reply)),
        total_steps(reply.plan().total_steps()),
        steps(StepsOf(reply.plan())),
        scheduled(reply.steps_done()),
        done(reply.steps_done()),
        saved(reply.saved_step()),
        evaluated(reply.has_evaluated_step() ? std::optional(reply.evaluated_step())
                                             : std::nullopt),
        timer(clock, std::chrono::seconds(reply.plan().checkpoint_seconds()), reply.steps_done()),
        meter(clock, opened.spec(), total_steps, steps_per_epoch, reply.progress()),
        last_report(clock.Now()) {}

  bool stop() const { return stop_asked || closures.stop_requested(); }

  const v1::OpenJobReply opened;
  Closures& closures;
  const ViewId number;
  const std::uint64_t steps_per_epoch;
  const std::uint64_t total_steps;
  const StepRule steps;
  std::uint64_t scheduled;
  std::uint64_t done;
  std::uint64_t saved;                     // step of the newest checkpoint of this view
  std::optional<std::uint64_t> evaluated;  // the newest step that was
  bool stop_asked = false;
  SaveTimer timer;
  ProgressMeter meter;
  TimePoint last_report;
};

Status Trainer::Run() {
  Result<v1::OpenJobReply> opened = api_.OpenJob();
  // A checkpoint is cut where the job stands still: what is scheduled beyond it has not begun.
  if (opened.ok() && opened->has_saving_step()) opened->set_scheduled(opened->steps_done());
  const Status status = opened.ok() ? RunView(*opened) : opened.status();
  // Stopped or ended while nobody drove it, or driven by another, or in another view: nothing is
  // left to do.
  const bool over = status.code() == StatusCode::kAborted ||
                    (!opened.ok() && (status.code() == StatusCode::kCancelled ||
                                      status.code() == StatusCode::kFailedPrecondition));
  return over ? Ok() : status;
}

// From the step that is done to the last one: schedules, saves and evaluates when it is time, until
// the view is over or the job stops.
Status Trainer::RunView(const v1::OpenJobReply& opened) {
  View view(opened, make_(opened), clock_);
  const v1::JobSpec& spec = view.opened.spec();
  const std::uint64_t save_every = spec.checkpoint().every_steps();
  const std::uint64_t evaluate_every = spec.evaluation().every_epochs() * view.steps_per_epoch;
  const bool evaluates = spec.evaluation().has_data() && !spec.evaluation().evaluator();
  const auto finish = [&](const Status& status, const v1::EvaluationResult* evaluation) {
    // A lost view or coordinator is not the job's end.
    if (status.code() == StatusCode::kAborted || status.code() == StatusCode::kUnavailable ||
        status.code() == StatusCode::kDeadlineExceeded) {
      return status;
    }
    return api_.Finish(view.number, status, evaluation, view.closures.Report());
  };

  if (const Status status = TakeOver(view); !status.ok()) return finish(status, nullptr);
  // A cut that is reached, with nothing scheduled beyond it, has not been left yet.
  for (std::uint64_t from = std::max<std::uint64_t>(1, view.scheduled);; from = view.done + 1) {
    const std::uint64_t cut = std::min({view.total_steps, view.steps.CutFrom(from, save_every),
                                        view.steps.CutFrom(from, evaluates ? evaluate_every : 0)});
    if (const Status status = TrainUntil(view, cut); !status.ok()) return finish(status, nullptr);
    const bool last = view.done == view.total_steps;
    if (view.stop() || last || view.timer.due() ||
        view.done == view.steps.CutFrom(view.done, save_every)) {
      if (const Status status = SaveCheckpoint(view); !status.ok()) return finish(status, nullptr);
    }
    if (last) break;
    if (view.stop()) {
      return finish(Cancelled("stopped as asked at step {} of {}", view.done, view.total_steps),
                    nullptr);
    }
    if (evaluates && view.done == view.steps.CutFrom(view.done, evaluate_every) &&
        view.evaluated != view.done) {
      const Result<std::optional<v1::EvaluationResult>> result = Evaluate(view);
      if (!result.ok()) return finish(result.status(), nullptr);
      if (!*result) continue;  // asked to stop, which saves and ends it
      MUSTER_TRY(Report(view, "training", &**result));
      view.evaluated = view.done;
    }
  }
  if (!evaluates) return finish(Ok(), nullptr);
  const Result<std::optional<v1::EvaluationResult>> result = Evaluate(view);
  if (!result.ok()) return finish(result.status(), nullptr);
  if (!*result) {
    return finish(Cancelled("stopped as asked in the evaluation after the last of {} steps",
                            view.total_steps),
                  nullptr);
  }
  return finish(Ok(), &**result);
}

// A checkpoint may not be cut before that is done: some of it may be applied already.
Status Trainer::TakeOver(View& view) {
  const std::uint64_t begun = view.opened.scheduled();
  if (begun > view.done) {
    MUSTER_TRY(view.closures.Schedule(v1::CLOSURE_KIND_TRAIN, view.done + 1, begun, 0));
    view.scheduled = begun;
    MUSTER_TRY(Drain(view));
  }
  return view.opened.has_saving_step() ? SaveCheckpoint(view) : Ok();
}

Status Trainer::TrainUntil(View& view, std::uint64_t cut) {
  while (view.done < cut) {
    // Refilled when half empty.
    if (view.stop()) return StandStill(view);
    if (view.timer.due()) return Drain(view);
    std::uint64_t window = options_.window;
    if (view.timer.by_time()) {
      window = std::min(window, view.timer.StepsUntilDue(view.done, view.closures.workers()));
    }
    if (view.scheduled < cut && view.scheduled - view.done <= window / 2) {
      const std::uint64_t until = std::min(cut, view.steps.CutFrom(view.done + window));
      MUSTER_TRY(view.closures.Schedule(v1::CLOSURE_KIND_TRAIN, view.scheduled + 1, until, 0));
      view.scheduled = until;
    }
    MUSTER_TRY(TakeSteps(view, "training"));
  }
  return Ok();
}

// Waits until everything that is scheduled is done.
Status Trainer::Drain(View& view) {
  while (view.done < view.scheduled) {
    MUSTER_TRY(TakeSteps(view, view.stop() ? "stopping" : "training"));
  }
  return Ok();
}

// Who asks a job to stop does not wait for a window of steps that nobody has begun.
Status Trainer::StandStill(View& view) {
  view.closures.StopGiving();
  while (!view.closures.stands_still()) MUSTER_TRY(TakeSteps(view, "stopping"));
  return TakeSteps(view, "stopping");
}

Status Trainer::TakeSteps(View& view, const std::string& phase) {
  MUSTER_TRY_ASSIGN(const std::vector<v1::ClosureResult> results, Take(view, phase));
  for (const v1::ClosureResult& result : results) {
    // An evaluation that is left off is no progress of the training.
    if (result.closure().kind() == v1::CLOSURE_KIND_TRAIN) view.meter.Add(result);
  }
  return Ok();
}

Result<std::vector<v1::ClosureResult>> Trainer::Take(View& view, const std::string& phase) {
  MUSTER_TRY_ASSIGN(std::vector<v1::ClosureResult> results,
                    view.closures.Take(options_.join_slice));
  for (const v1::ClosureResult& result : results) {
    if (result.closure().kind() == v1::CLOSURE_KIND_TRAIN) view.done = result.closure().id();
  }
  if (clock_.Now() - view.last_report >= options_.report_every) {
    MUSTER_TRY(Report(view, phase, nullptr));
  }
  return results;
}

Status Trainer::SaveCheckpoint(View& view) {
  const TimePoint began = clock_.Now();
  if (view.saved == view.done && view.done != 0) {
    view.timer.Saved(view.done, began);
    return Ok();
  }
  const bool final = view.stop() || view.done == view.total_steps;
  Result<v1::SaveCheckpointReply> saved = v1::SaveCheckpointReply();
  for (int attempt = 0; attempt < (final ? options_.final_attempts : 1); ++attempt) {
    if (attempt > 0) options_.sleep(options_.rest);
    MUSTER_TRY(Report(view, "saving a checkpoint", nullptr));
    saved = api_.SaveCheckpoint(view.number, view.done, view.closures.Position());
    if (!saved.ok()) return saved.status();
    if (saved->failure().empty()) break;
  }
  // A disk costs this checkpoint, not the job, unless it is the last: the coordinator has written
  // the event, and decides in the end.
  if (saved->failure().empty()) view.saved = view.done;
  view.timer.Saved(view.done, began);
  return Ok();
}

// Nothing, with nothing in flight: the job was asked to stop.
Result<std::optional<v1::EvaluationResult>> Trainer::Evaluate(View& view) {
  const v1::JobSpec& spec = view.opened.spec();
  const std::uint64_t examples = view.opened.evaluation_examples();
  const std::uint64_t batch = std::max<std::uint64_t>(
      1, spec.evaluation().batch_size() > 0 ? spec.evaluation().batch_size() : spec.batch_size());
  const std::uint64_t batches = (examples + batch - 1) / batch;
  MUSTER_TRY(Report(view, "evaluating", nullptr));
  Result<v1::BeginEvaluationReply> begun = ResourceExhausted("not asked");
  while (begun.status().code() == StatusCode::kResourceExhausted) {
    if (view.stop()) return std::nullopt;
    begun = api_.BeginEvaluation(view.number, view.closures.Position());
  }
  if (!begun.ok()) return begun.status();
  v1::MetricSums sums;
  for (std::uint64_t next = 1, scored = 0; scored < batches;) {
    if (view.stop()) {
      MUSTER_TRY(StandStill(view));
      return std::nullopt;
    }
    if (next <= batches && next - 1 - scored <= options_.window / 2) {
      const std::uint64_t until = std::min(batches, scored + options_.window);
      MUSTER_TRY(view.closures.Schedule(v1::CLOSURE_KIND_EVALUATE, next, until, begun->buffers()));
      next = until + 1;
    }
    MUSTER_TRY_ASSIGN(const std::vector<v1::ClosureResult> results, Take(view, "evaluating"));
    for (const v1::ClosureResult& result : results) AddSums(result.metrics(), sums);
    scored += results.size();
  }
  if (sums.examples() != examples) {
    return Internal("evaluation at step {} scored {} examples in {}; there are {}", view.done,
                    sums.examples(), Counted(batches, "batch", "batches"), examples);
  }
  return Summarise(sums, spec, view.done);
}

Status Trainer::Report(View& view, const std::string& phase,
                       const v1::EvaluationResult* evaluation) {
  view.last_report = clock_.Now();
  MUSTER_TRY_ASSIGN(const v1::ReportProgressReply reply,
                    api_.Report(view.number, view.meter.Report(view.done, phase), evaluation));
  view.stop_asked = view.stop_asked || reply.stop_requested();
  return Ok();
}

}  // namespace muster::trainer
