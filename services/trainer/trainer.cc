#include "services/trainer/trainer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/step_rule.h"
#include "common/messages/metric_sums.h"
#include "common/messages/steps.h"
#include "services/trainer/metrics.h"
#include "services/trainer/progress.h"
#include "services/trainer/save_timer.h"

namespace muster::trainer {
namespace {

std::uint64_t StepsPerEpoch(const v1::OpenJobReply& opened) {
  const std::uint64_t batch = std::max<std::uint32_t>(1, opened.spec().batch_size());
  const std::uint64_t examples = opened.training_examples();
  return opened.spec().data().drop_remainder() ? examples / batch : (examples + batch - 1) / batch;
}

// A round whose results do not come is made again; never more often than that.
constexpr int kEvaluationAttempts = 3;

v1::Closure MakeClosure(v1::ClosureKind kind, std::uint64_t id) {
  v1::Closure closure;
  closure.set_kind(kind);
  closure.set_id(id);
  return closure;
}

}  // namespace

struct Trainer::View {
  View(const v1::OpenJobReply& reply, const Clock& clock)
      : opened(reply),
        number(reply.plan().view()),
        steps_per_epoch(StepsPerEpoch(reply)),
        total_steps(reply.plan().total_steps()),
        steps(StepsOf(reply.plan())),
        scheduled(reply.scheduled()),
        done(reply.steps_done()),
        saved(reply.saved_step()),
        evaluated(reply.has_evaluated_step() ? std::optional(reply.evaluated_step())
                                             : std::nullopt),
        round(reply.evaluation_round()),
        timer(clock, std::chrono::seconds(reply.plan().checkpoint_seconds()), reply.steps_done()),
        meter(clock, opened.spec(), total_steps, steps_per_epoch, reply.progress()),
        last_report(clock.Now()) {}

  const v1::OpenJobReply opened;
  const ViewId number;
  const std::uint64_t steps_per_epoch;
  const std::uint64_t total_steps;
  const StepRule steps;
  std::uint64_t scheduled;  // steps 1..scheduled have been handed to the coordinator
  std::uint64_t done;
  std::uint64_t saved;                     // step of the newest checkpoint of this view
  std::optional<std::uint64_t> evaluated;  // the newest step that was
  std::uint32_t round;  // of the newest evaluation; no other driver uses it again
  bool stop = false;
  SaveTimer timer;
  ProgressMeter meter;
  TimePoint last_report;
};

struct Trainer::Scores {
  v1::MetricSums sums;
  std::uint64_t results = 0;
};

Status Trainer::Run() {
  while (true) {
    const Result<v1::OpenJobReply> opened = api_.OpenJob();
    if (!opened.ok()) {
      if (opened.status().code() == StatusCode::kAborted) continue;
      // Stopped or ended while nobody drove it, or driven by another: nothing is left to do.
      if (opened.status().code() == StatusCode::kCancelled ||
          opened.status().code() == StatusCode::kFailedPrecondition) {
        return Ok();
      }
      return opened.status();
    }
    const Status status = RunView(*opened);
    if (status.ok() || status.code() != StatusCode::kAborted) return status;
    // The job went back to a checkpoint: open it again, in its new view.
  }
}

Status Trainer::RunView(const v1::OpenJobReply& opened) {
  View view(opened, clock_);
  const v1::JobSpec& spec = view.opened.spec();
  const std::uint64_t save_every = spec.checkpoint().every_steps();
  const std::uint64_t evaluate_every = spec.evaluation().every_epochs() * view.steps_per_epoch;
  const bool evaluates = spec.evaluation().has_data();
  const auto finish = [&](const Status& status, const v1::EvaluationResult* evaluation) {
    // A lost view or coordinator is not the job's end.
    if (status.code() == StatusCode::kAborted || status.code() == StatusCode::kUnavailable ||
        status.code() == StatusCode::kDeadlineExceeded) {
      return status;
    }
    return api_.Finish(view.number, status, evaluation);
  };

  if (const Status status = TakeOver(view); !status.ok()) return finish(status, nullptr);
  // A cut that is reached, with nothing scheduled beyond it, has not been left yet.
  for (std::uint64_t from = std::max<std::uint64_t>(1, view.scheduled);; from = view.done + 1) {
    const std::uint64_t cut = std::min({view.total_steps, view.steps.CutFrom(from, save_every),
                                        view.steps.CutFrom(from, evaluates ? evaluate_every : 0)});
    if (const Status status = TrainUntil(view, cut); !status.ok()) return finish(status, nullptr);
    const bool last = view.done == view.total_steps;
    if (view.stop || last || view.timer.due() ||
        view.done == view.steps.CutFrom(view.done, save_every)) {
      if (const Status status = SaveCheckpoint(view); !status.ok()) return finish(status, nullptr);
    }
    if (last) break;
    if (view.stop) {
      return finish(Cancelled("stopped as asked at step {} of {}", view.done, view.total_steps),
                    nullptr);
    }
    if (evaluates && view.done == view.steps.CutFrom(view.done, evaluate_every) &&
        view.evaluated != view.done) {
      const Result<v1::EvaluationResult> result = Evaluate(view);
      if (!result.ok()) return finish(result.status(), nullptr);
      MUSTER_TRY(Report(view, "training", &*result));
      view.evaluated = view.done;
    }
  }
  if (!evaluates) return finish(Ok(), nullptr);
  const Result<v1::EvaluationResult> result = Evaluate(view);
  if (!result.ok()) return finish(result.status(), nullptr);
  return finish(Ok(), &*result);
}

Status Trainer::TakeOver(View& view) {
  if (view.opened.has_saving_step()) MUSTER_TRY(SaveCheckpoint(view));
  const bool begun = view.scheduled > view.opened.plan().start_step() || view.round > 0;
  // Nothing is left to train before the next cut; an evaluation may still be under way.
  if (begun && view.done == view.scheduled) return Drain(view);
  return Ok();
}

Status Trainer::TrainUntil(View& view, std::uint64_t cut) {
  while (view.done < cut) {
    // Refilled when half empty: one call carries many closures.
    const bool ends = view.stop || view.timer.due();
    const std::uint64_t window = std::min(options_.window, view.timer.StepsUntilDue(view.done));
    if (!ends && view.scheduled < cut && view.scheduled - view.done <= window / 2) {
      const std::uint64_t until = std::min(cut, view.steps.CutFrom(view.done + window));
      std::vector<v1::Closure> closures;
      closures.reserve(until - view.scheduled);
      for (std::uint64_t step = view.scheduled + 1; step <= until; ++step) {
        closures.push_back(MakeClosure(v1::CLOSURE_KIND_TRAIN, step));
      }
      MUSTER_TRY(ScheduleAll(view, closures));
      view.scheduled = until;
    }
    if (ends) {
      MUSTER_TRY(Drain(view));
      return Ok();
    }
    MUSTER_TRY_ASSIGN(const v1::JoinReply joined, api_.Join(view.number, options_.join_slice));
    view.done = joined.done() ? view.scheduled : std::min(joined.steps_done(), view.scheduled);
    view.stop = view.stop || joined.stop_requested();
    MUSTER_TRY(ReportIfDue(view, "training"));
  }
  return Ok();
}

// Waits until everything that is scheduled is done; a long wait is reported, never silent.
Status Trainer::Drain(View& view) {
  while (true) {
    MUSTER_TRY_ASSIGN(const v1::JoinReply joined, api_.Join(view.number, options_.join_slice));
    view.stop = view.stop || joined.stop_requested();
    if (joined.done()) {
      view.done = view.scheduled;
      return Ok();
    }
    view.done = std::min(joined.steps_done(), view.scheduled);
    MUSTER_TRY(ReportIfDue(view, view.stop ? "stopping" : "training"));
  }
}

Status Trainer::SaveCheckpoint(View& view) {
  const TimePoint began = clock_.Now();
  if (view.saved == view.done && view.done != 0) {
    view.timer.Saved(view.done, began);
    return Ok();
  }
  const bool final = view.stop || view.done == view.total_steps;
  Result<v1::SaveCheckpointReply> saved = v1::SaveCheckpointReply();
  for (int attempt = 0; attempt < (final ? options_.final_attempts : 1); ++attempt) {
    if (attempt > 0) options_.sleep(options_.rest);
    MUSTER_TRY(Report(view, "saving a checkpoint", nullptr));
    saved = api_.SaveCheckpoint(view.number, view.done);
    if (!saved.ok()) return saved.status();
    if (saved->failure().empty()) break;
  }
  // A disk costs this checkpoint, not the job, unless it is the last: the coordinator has written
  // the event, and decides in the end.
  if (saved->failure().empty()) view.saved = view.done;
  view.timer.Saved(view.done, began);
  return Ok();
}

Result<v1::EvaluationResult> Trainer::Evaluate(View& view) {
  const v1::JobSpec& spec = view.opened.spec();
  const std::uint64_t examples = view.opened.evaluation_examples();
  const std::uint64_t batch = std::max<std::uint64_t>(
      1, spec.evaluation().batch_size() > 0 ? spec.evaluation().batch_size() : spec.batch_size());
  const std::uint64_t batches = (examples + batch - 1) / batch;
  MUSTER_TRY(Report(view, "evaluating", nullptr));
  for (int attempt = 1;; ++attempt) {
    MUSTER_TRY_ASSIGN(const Scores scores, ScoreAll(view, batches));
    if (scores.results == batches && scores.sums.examples() == examples) {
      return Summarise(scores.sums, spec, view.done);
    }
    // An answer to Fetch() may have been lost with what it carried.
    if (attempt == kEvaluationAttempts) {
      return Internal("evaluation at step {} scored {} examples in {} batches; there are {} in {}",
                      view.done, scores.sums.examples(), scores.results, examples, batches);
    }
  }
}

Result<Trainer::Scores> Trainer::ScoreAll(View& view, std::uint64_t batches) {
  const std::uint32_t round = ++view.round;
  Scores scores;
  const auto collect = [&]() -> Status {
    MUSTER_TRY_ASSIGN(const v1::FetchReply fetched,
                      api_.Fetch(view.number, v1::CLOSURE_KIND_EVALUATE));
    for (const v1::ClosureResult& result : fetched.results()) {
      // Asked for by a driver before this one.
      if (EvaluationId(result.closure().id()).round() != round) continue;
      AddSums(result.metrics(), scores.sums);
      ++scores.results;
    }
    return Ok();
  };
  for (std::uint64_t next = 1; next <= batches;) {
    std::vector<v1::Closure> closures;
    const std::uint64_t until = std::min(batches, next + options_.window - 1);
    for (; next <= until; ++next) {
      closures.push_back(
          MakeClosure(v1::CLOSURE_KIND_EVALUATE,
                      EvaluationId(round, static_cast<std::uint32_t>(next)).value()));
    }
    MUSTER_TRY(ScheduleAll(view, closures));
    bool done = false;
    while (!done) {
      MUSTER_TRY_ASSIGN(const v1::JoinReply joined, api_.Join(view.number, options_.join_slice));
      done = joined.done();
      view.stop = view.stop || joined.stop_requested();
      MUSTER_TRY(ReportIfDue(view, "evaluating"));
    }
    MUSTER_TRY(collect());
  }
  return scores;
}

Status Trainer::Report(View& view, const std::string& phase,
                       const v1::EvaluationResult* evaluation) {
  MUSTER_TRY_ASSIGN(const v1::FetchReply fetched, api_.Fetch(view.number, v1::CLOSURE_KIND_TRAIN));
  for (const v1::ClosureResult& result : fetched.results()) view.meter.Add(result);
  view.last_report = clock_.Now();
  MUSTER_TRY_ASSIGN(const v1::ReportProgressReply reply,
                    api_.Report(view.number, view.meter.Report(view.done, phase), evaluation));
  view.stop = view.stop || reply.stop_requested();
  return Ok();
}

Status Trainer::ReportIfDue(View& view, const std::string& phase) {
  if (clock_.Now() - view.last_report < options_.report_every) return Ok();
  return Report(view, phase, nullptr);
}

// A full queue is waited out: the coordinator has held the call for 30 s already.
Status Trainer::ScheduleAll(View& view, const std::vector<v1::Closure>& closures) {
  while (true) {
    const Status status = api_.Schedule(view.number, closures);
    if (status.code() != StatusCode::kResourceExhausted) return status;
    MUSTER_TRY(ReportIfDue(view, "waiting for room in the queue"));
  }
}

}  // namespace muster::trainer
