// What the driver asks of an open view.
#include <algorithm>

#include "common/base/words.h"
#include "coordinator/model_job.h"
#include "coordinator/view.h"
#include "coordinator/view_save.h"

namespace muster::coordinator {

std::uint64_t View::StepsDone() const {
  return story_.plan().start_step() + (dispatcher_ ? dispatcher_->train_done() : 0);
}

std::optional<Status> View::RaiseError() {
  auto error = dispatcher_->queue().Raise();
  if (error) position_.raised = error;
  return error;
}

// Where the view is, for a driver that goes on from there.
v1::OpenJobReply View::Opened() {
  // One that was started again asks for its evaluation anew.
  dispatcher_->Forget(v1::CLOSURE_KIND_EVALUATE);
  const v1::JobRecord& record = story_.record();
  v1::OpenJobReply reply;
  *reply.mutable_spec() = record.job().spec();
  *reply.mutable_plan() = record.plan();
  reply.set_training_examples(record.training_examples());
  reply.set_evaluation_examples(record.evaluation_examples());
  reply.set_workers(static_cast<std::uint32_t>(dispatcher_->workers()));
  reply.set_scheduled(position_.scheduled);
  reply.set_steps_done(StepsDone());
  reply.set_saved_step(SavedStep());
  if (saving_) reply.set_saving_step(saving_->step);
  if (position_.evaluated) reply.set_evaluated_step(*position_.evaluated);
  reply.set_evaluation_round(position_.evaluation_round);
  if (record.job().has_progress()) *reply.mutable_progress() = record.job().progress();
  return reply;
}

void View::NoteScheduled(const v1::Closure& closure) {
  if (closure.kind() == v1::CLOSURE_KIND_TRAIN) {
    position_.scheduled = std::max(position_.scheduled, closure.id());
  } else {
    position_.evaluation_round =
        std::max(position_.evaluation_round, static_cast<std::uint32_t>(closure.id() >> 32));
  }
}

// Queues as many as there is room for, and hands out what workers may have.
std::optional<Result<v1::ScheduleReply>> View::Schedule(const v1::ScheduleRequest& request,
                                                        int& next, bool last) {
  const bool evaluates =
      std::any_of(request.closures().begin(), request.closures().end(),
                  [](const v1::Closure& one) { return one.kind() == v1::CLOSURE_KIND_EVALUATE; });
  if (evaluates && !BuffersReady()) {
    if (!last) return std::nullopt;
    return ResourceExhausted("job {} waits for a worker's buffers to evaluate with: try again",
                             story_.id());
  }
  ClosureQueue& queue = dispatcher_->queue();
  for (; next < request.closures_size(); ++next) {
    const v1::Closure& closure = request.closures(next);
    const ClosureQueue::PutResult put = queue.Put({closure.kind(), closure.id()});
    if (put == ClosureQueue::PutResult::kFailed) {
      if (const auto error = RaiseError()) return *error;
      break;
    }
    if (put == ClosureQueue::PutResult::kFull) break;
    NoteScheduled(closure);
  }
  Pump();
  if (next == request.closures_size()) {
    v1::ScheduleReply reply;
    reply.set_queued(queue.queued());
    return reply;
  }
  if (!last) return std::nullopt;
  return ResourceExhausted("the queue of job {} is full ({}): try again", story_.id(),
                           Counted(queue.queued(), "closure"));
}

std::optional<Result<v1::JoinReply>> View::Join(bool last) {
  const ClosureQueue& queue = dispatcher_->queue();
  if (const auto error = RaiseError()) return *error;
  const bool done = queue.idle() && !queue.failed();
  if (!done && !last) return std::nullopt;
  v1::JoinReply reply;
  reply.set_done(done);
  reply.set_steps_done(StepsDone());
  reply.set_stop_requested(story_.record().stop_requested());
  return reply;
}

}  // namespace muster::coordinator
