// What the driver of a job says and asks.
#include <algorithm>

#include "common/base/words.h"
#include "common/messages/job_state.h"
#include "coordinator/model_job.h"

namespace muster::coordinator {
namespace {

// A call that waits longer is answered "not yet", and says for whom.
constexpr Millis kOpenLimit{25'000};
constexpr Millis kEvaluationLimit{30'000};
constexpr Millis kFinishLimit{30'000};

}  // namespace

Status ModelJob::CheckView(ViewId view) const {
  if (ended()) {
    return FailedPrecondition("job {} has ended: {}", id(), StateName(record().job().state()));
  }
  if (view != ViewId(record().plan().view()) || !view_ || !view_->open()) {
    return Aborted("job {} has left view {} and goes back to a checkpoint: open it again", id(),
                   view);
  }
  return Ok();
}

Status ModelJob::CheckCall(ViewId view, Incarnation driver) const {
  if (!ended() && (driver == Incarnation() || driver != driver_.number)) {
    return Aborted("another process drives job {} now: end", id());
  }
  return CheckView(view);
}

template <class Value>
std::function<void(Value)> ModelJob::Heard(std::function<void(Value)> then) {
  driver_.heard = true;
  ++driver_.calls;
  return [this, here = lifeline_.Watch(), number = driver_.number,
          then = std::move(then)](Value reply) {
    if (here() && driver_.number == number) {
      driver_.heard = true;
      --driver_.calls;
    }
    then(std::forward<Value>(reply));
  };
}

// Answers when the view is open.
void ModelJob::OpenJob(const v1::OpenJobRequest& request, Then<v1::OpenJobReply> asked) {
  if (Incarnation(request.driver()) == driver_.number) asked = Heard(std::move(asked));
  story_.parked().Add(kOpenLimit, [this, driver = Incarnation(request.driver()),
                                   then = std::move(asked)](bool last) {
    const v1::JobState state = record().job().state();
    if (ended()) {
      then(state == v1::JOB_STATE_CANCELLED
               ? Cancelled("job {} was stopped", id())
               : FailedPrecondition("job {} has ended: {}", id(), StateName(state)));
      return true;
    }
    if (driver == Incarnation() || driver != driver_.number) {
      then(FailedPrecondition("another process drives job {} now: end", id()));
      return true;
    }
    if (!view_ || !view_->open()) {
      if (!last) return false;
      then(DeadlineExceeded("job {} is not ready yet: {}", id(), record().job().message()));
      return true;
    }
    driver_.pid = world_.drivers.Pid(id());
    NoteDriverBack();
    then(view_->Opened());
    return true;
  });
}

void ModelJob::Tell(const v1::ToProgram& message) {
  if (driver_.running) world_.drivers.Send(id(), message);
}

void ModelJob::OnDriverMessage(Incarnation driver, const v1::FromProgram& message) {
  if (ended() || driver == Incarnation() || driver != driver_.number || !view_) return;
  driver_.heard = true;
  if (message.has_model()) view_->OnReport(message.model());
  if (message.has_answer()) view_->OnVerdictAnswer(message.answer());
}

void ModelJob::BeginEvaluation(const v1::BeginEvaluationRequest& request,
                               Then<v1::BeginEvaluationReply> asked) {
  const ViewId view(request.view());
  const Incarnation driver(request.driver());
  if (const Status status = CheckCall(view, driver); !status.ok()) return asked(status);
  view_->OnReport(request.report());
  story_.parked().Add(
      kEvaluationLimit, [this, view, driver, then = Heard(std::move(asked))](bool last) {
        if (const Status status = CheckCall(view, driver); !status.ok()) {
          then(status);
          return true;
        }
        std::optional<Result<v1::BeginEvaluationReply>> answer = view_->BeginEvaluation(last);
        if (answer) then(*std::move(answer));
        return answer.has_value();
      });
}

void ModelJob::SaveCheckpoint(const v1::SaveCheckpointRequest& request,
                              Then<v1::SaveCheckpointReply> asked) {
  const ViewId view(request.view());
  const Incarnation driver(request.driver());
  if (const Status status = CheckCall(view, driver); !status.ok()) return asked(status);
  view_->OnReport(request.report());
  // What it has told may have ended the view, or the job.
  if (const Status status = CheckCall(view, driver); !status.ok()) return asked(status);
  view_->SaveCheckpoint(request.step(), Heard(std::move(asked)));
}

Result<v1::ReportProgressReply> ModelJob::ReportProgress(const v1::ReportProgressRequest& request) {
  MUSTER_TRY(CheckCall(ViewId(request.view()), Incarnation(request.driver())));
  driver_.heard = true;
  v1::Job& job = *story_.record().mutable_job();
  *job.mutable_progress() = request.progress();
  story_.Show(FiguresOf(request.progress()));
  if (request.has_evaluation()) {
    *job.mutable_evaluation() = request.evaluation();
    story_.Show(FiguresOf(request.evaluation()));
    view_->NoteEvaluated(request.evaluation().step());
  }
  story_.Touch();
  story_.Persist();
  v1::ReportProgressReply reply;
  reply.set_stop_requested(story_.record().stop_requested());
  return reply;
}

// What is wrong with the newest steps' checkpoint; empty: nothing.
std::string ModelJob::Unsaved() const {
  if (lasting_.save_failure.empty()) return {};
  const auto& saved = story_.checkpoints();
  const auto newest = std::find_if(saved.rbegin(), saved.rend(),
                                   [](const auto& info) { return info.refused().empty(); });
  return fmt::format("the newest steps are not saved: {}; {}", lasting_.save_failure,
                     newest == saved.rend()
                         ? story_.NoSoundCheckpoint()
                         : fmt::format("the newest checkpoint is of step {}", newest->step()));
}

// With an error: not before it is known whether a closure is given up, which says more.
void ModelJob::FinishJob(const v1::FinishJobRequest& request, Story::Done asked) {
  const bool repeated = ended() && driver_.finished && driver_.number != Incarnation() &&
                        Incarnation(request.driver()) == driver_.number;
  if (repeated) return WhenWritten(std::move(asked));
  if (const Status called = CheckCall(ViewId(request.view()), Incarnation(request.driver()));
      !called.ok()) {
    return asked(called);
  }
  if (request.status().code() == 0 || !view_->judging()) return Finish(request, std::move(asked));
  driver_.finished = true;
  story_.parked().Add(kFinishLimit, [this, request, then = Heard(std::move(asked))](bool last) {
    if (ended()) {
      WhenWritten(then);
      return true;
    }
    const Status called = CheckCall(ViewId(request.view()), Incarnation(request.driver()));
    if (!called.ok() || (last && view_->judging())) {
      then(called.ok()
               ? DeadlineExceeded("job {} looks up what a closure that is given up reads", id())
               : called);
      return true;
    }
    if (view_->judging()) return false;
    Finish(request, then);
    return true;
  });
}

// Ends the job as its driver says, but for what the driver does not know.
void ModelJob::Finish(const v1::FinishJobRequest& request, Story::Done then) {
  view_->OnReport(request.report());
  if (ended()) return WhenWritten(std::move(then));
  driver_.finished = driver_.heard = true;
  v1::Job& job = *story_.record().mutable_job();
  if (request.has_evaluation()) {
    *job.mutable_evaluation() = request.evaluation();
    story_.Show(FiguresOf(request.evaluation()));
  }
  const Status status =
      MakeStatus(static_cast<StatusCode>(request.status().code()), request.status().message());
  const std::string unsaved = Unsaved();
  if (status.ok() && unsaved.empty()) {
    const std::string message = "done: " + Counted(story_.record().steps_done(), "step");
    if (story_.spec().evaluation().evaluator()) return BeginEvaluating(message, std::move(then));
    End(v1::JOB_STATE_SUCCEEDED, Ok(), message);
  } else if (status.ok()) {
    // A trained model that nobody can have is no success.
    const std::string text = fmt::format(
        "all {} steps were done, but {}. Make room, and submit the same job again: it goes on from "
        "there; so does one of another name with the same checkpoint.directory",
        story_.record().steps_done(), unsaved);
    End(v1::JOB_STATE_FAILED, ResourceExhausted("{}", text), text, "CHECKPOINT_FAILED");
  } else if (status.code() == StatusCode::kCancelled) {
    End(v1::JOB_STATE_CANCELLED, status,
        unsaved.empty() ? Message(status) : Message(status) + "; " + unsaved);
  } else {
    Fail(status);
  }
  WhenWritten(std::move(then));
}

void ModelJob::BeginEvaluating(const std::string& message, Story::Done then) {
  story_.record().set_trained(message);
  (void)CloseProgress();
  Drop();
  // Its end, and what it may still say, is nobody's concern.
  driver_ = Driver();
  AwaitEvaluations();
  story_.Persist([this, here = lifeline_.Watch()](const Status&) {
    if (!here() || ended()) return;
    ReleaseTasks();
    world_.drivers.Stop(id(), Millis(5'000));
  });
  WhenWritten(std::move(then));
  GiveUpSlot();
}

void ModelJob::AwaitEvaluations() {
  phase_ = Phase::kBegun;
  story_.SetState(v1::JOB_STATE_RUNNING, "EVALUATING",
                  "all steps are done; evaluator:0 evaluates the checkpoints that are left");
  evaluations_.WhenDone([this](const std::string& left) {
    if (!left.empty()) story_.Tell("EVALUATION_GIVEN_UP", left, &kEvaluator);
    End(v1::JOB_STATE_SUCCEEDED, Ok(), record().trained() + (left.empty() ? "" : "; " + left));
  });
}

}  // namespace muster::coordinator
