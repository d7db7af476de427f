// What the driver of a job asks.
#include <algorithm>

#include "common/base/words.h"
#include "coordinator/model_job.h"

namespace muster::coordinator {
namespace {

// A call that waits longer is answered "not yet", and says for whom.
constexpr Millis kOpenLimit{25'000};
constexpr Millis kScheduleLimit{30'000};
constexpr Millis kJoinMost{30'000};

}  // namespace

Status ModelJob::CheckView(std::uint64_t view) const {
  if (ended()) {
    return FailedPrecondition("job {} has ended: {}", id(), StateName(record().job().state()));
  }
  if (view != record().plan().view() || !view_ || !view_->open()) {
    return Aborted("job {} has left view {} and goes back to a checkpoint: open it again", id(),
                   view);
  }
  return Ok();
}

Status ModelJob::CheckCall(std::uint64_t view, std::uint64_t driver) const {
  if (!ended() && (driver == 0 || driver != driver_.number)) {
    return Aborted("another process drives job {} now: end", id());
  }
  return CheckView(view);
}

template <class Reply>
ModelJob::Then<Reply> ModelJob::Heard(Then<Reply> then) {
  driver_.heard = true;
  ++driver_.calls;
  return [this, weak = std::weak_ptr<Job*>(self_), number = driver_.number,
          then = std::move(then)](Result<Reply> reply) {
    if (!weak.expired() && driver_.number == number) {
      driver_.heard = true;
      --driver_.calls;
    }
    then(std::move(reply));
  };
}

// Answers when the view is open.
void ModelJob::OpenJob(const v1::OpenJobRequest& request, Then<v1::OpenJobReply> asked) {
  if (request.driver() == driver_.number) asked = Heard(std::move(asked));
  story_.parked().Add(
      kOpenLimit, [this, driver = request.driver(), then = std::move(asked)](bool last) {
        const v1::JobState state = record().job().state();
        if (ended()) {
          then(state == v1::JOB_STATE_CANCELLED
                   ? Cancelled("job {} was stopped", id())
                   : FailedPrecondition("job {} has ended: {}", id(), StateName(state)));
          return true;
        }
        if (driver == 0 || driver != driver_.number) {
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

void ModelJob::Schedule(const v1::ScheduleRequest& request, Then<v1::ScheduleReply> asked) {
  if (const Status status = CheckCall(request.view(), request.driver()); !status.ok()) {
    return asked(status);
  }
  auto next = std::make_shared<int>(0);
  story_.parked().Add(
      kScheduleLimit, [this, request, next, then = Heard(std::move(asked))](bool last) {
        if (const Status status = CheckCall(request.view(), request.driver()); !status.ok()) {
          then(status);
          return true;
        }
        std::optional<Result<v1::ScheduleReply>> answer = view_->Schedule(request, *next, last);
        if (answer) then(*std::move(answer));
        return answer.has_value();
      });
}

void ModelJob::Join(const v1::JoinRequest& request, Then<v1::JoinReply> asked) {
  const std::uint64_t view = request.view(), driver = request.driver();
  if (const Status status = CheckCall(view, driver); !status.ok()) return asked(status);
  const Millis limit = std::min(Millis(request.timeout_ms()), kJoinMost);
  story_.parked().Add(limit, [this, view, driver, then = Heard(std::move(asked))](bool last) {
    if (const Status status = CheckCall(view, driver); !status.ok()) {
      then(status);
      return true;
    }
    std::optional<Result<v1::JoinReply>> answer = view_->Join(last);
    if (answer) then(*std::move(answer));
    return answer.has_value();
  });
}

Result<v1::FetchReply> ModelJob::Fetch(const v1::FetchRequest& request) {
  MUSTER_TRY(CheckCall(request.view(), request.driver()));
  driver_.heard = true;
  v1::FetchReply reply;
  view_->TakeResults(request.kind(), reply);
  return reply;
}

void ModelJob::SaveCheckpoint(const v1::SaveCheckpointRequest& request,
                              Then<v1::SaveCheckpointReply> asked) {
  if (const Status status = CheckCall(request.view(), request.driver()); !status.ok()) {
    return asked(status);
  }
  view_->SaveCheckpoint(request.step(), Heard(std::move(asked)));
}

Result<v1::ReportProgressReply> ModelJob::ReportProgress(const v1::ReportProgressRequest& request) {
  MUSTER_TRY(CheckCall(request.view(), request.driver()));
  driver_.heard = true;
  v1::Job& job = *story_.record().mutable_job();
  *job.mutable_progress() = request.progress();
  if (request.has_evaluation()) {
    *job.mutable_evaluation() = request.evaluation();
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

// Ends the job as its driver says, but for what the driver does not know.
void ModelJob::FinishJob(const v1::FinishJobRequest& request, Story::Done then) {
  const bool repeated =
      ended() && driver_.finished && driver_.number != 0 && request.driver() == driver_.number;
  if (repeated) return WhenWritten(std::move(then));
  if (const Status called = CheckCall(request.view(), request.driver()); !called.ok()) {
    return then(called);
  }
  driver_.finished = driver_.heard = true;
  v1::Job& job = *story_.record().mutable_job();
  if (request.has_evaluation()) *job.mutable_evaluation() = request.evaluation();
  const Status status =
      MakeStatus(static_cast<StatusCode>(request.status().code()), request.status().message());
  const std::string unsaved = Unsaved();
  if (status.ok() && view_->raised()) {
    Fail(Status(*view_->raised()));
  } else if (status.ok() && unsaved.empty()) {
    End(v1::JOB_STATE_SUCCEEDED, Ok(), "done: " + Counted(story_.record().steps_done(), "step"));
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

}  // namespace muster::coordinator
