// What the driver of a job asks.
#include <algorithm>

#include "common/base/words.h"
#include "coordinator/job.h"
#include "coordinator/job_save.h"
#include "coordinator/plan.h"

namespace muster::coordinator {
namespace {

// A call that waits longer is answered "not yet", and says for whom.
constexpr Millis kOpenLimit{25'000};
constexpr Millis kScheduleLimit{30'000};
constexpr Millis kJoinMost{30'000};
constexpr std::uint32_t kKeepDefault = 3;

// A server that is there and says that it cannot is not asked without end.
constexpr int kMostTries = 20;

void AddReport(const v1::SaveReport& report, v1::CheckpointManifest& manifest) {
  *manifest.add_files() = report.file();
  for (const v1::TensorSlice& slice : report.slices()) *manifest.add_slices() = slice;
}

}  // namespace

Status Job::CheckView(std::uint64_t view) const {
  if (phase_ == Phase::kEnded) {
    return FailedPrecondition("job {} has ended: {}", id(), StateName(record_.job().state()));
  }
  if (view != record_.plan().view() || phase_ != Phase::kOpen) {
    return Aborted("job {} has left view {} and goes back to a checkpoint: open it again", id(),
                   view);
  }
  return Ok();
}

Status Job::CheckCall(std::uint64_t view, std::uint64_t driver) const {
  if (phase_ != Phase::kEnded && (driver == 0 || driver != driver_.number)) {
    return Aborted("another process drives job {} now: end", id());
  }
  return CheckView(view);
}

template <class Reply>
Job::Then<Reply> Job::Heard(Then<Reply> then) {
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

std::uint64_t Job::StepsDone() const {
  return record_.plan().start_step() + (dispatcher_ ? dispatcher_->train_done() : 0);
}

std::optional<Status> Job::RaiseError() {
  auto error = dispatcher_->queue().Raise();
  if (error) position_.raised = error;
  return error;
}

void Job::OpenJob(const v1::OpenJobRequest& request, Then<v1::OpenJobReply> asked) {
  if (request.driver() == driver_.number) asked = Heard(std::move(asked));
  parked_.Add(kOpenLimit, [this, driver = request.driver(), then = std::move(asked)](bool last) {
    const v1::JobState state = record_.job().state();
    if (phase_ == Phase::kEnded) {
      then(state == v1::JOB_STATE_CANCELLED
               ? Cancelled("job {} was stopped", id())
               : FailedPrecondition("job {} has ended: {}", id(), StateName(state)));
      return true;
    }
    if (driver == 0 || driver != driver_.number) {
      then(FailedPrecondition("another process drives job {} now: end", id()));
      return true;
    }
    if (phase_ != Phase::kOpen) {
      if (!last) return false;
      then(DeadlineExceeded("job {} is not ready yet: {}", id(), record_.job().message()));
      return true;
    }
    driver_.pid = world_.drivers.Pid(id());
    NoteDriverBack();
    // A driver that was started again asks for its evaluation anew.
    dispatcher_->Forget(v1::CLOSURE_KIND_EVALUATE);
    then(Opened());
    return true;
  });
}

v1::OpenJobReply Job::Opened() const {
  v1::OpenJobReply reply;
  *reply.mutable_spec() = record_.job().spec();
  *reply.mutable_plan() = record_.plan();
  reply.set_training_examples(record_.training_examples());
  reply.set_evaluation_examples(record_.evaluation_examples());
  reply.set_workers(static_cast<std::uint32_t>(dispatcher_->workers()));
  reply.set_scheduled(position_.scheduled);
  reply.set_steps_done(StepsDone());
  reply.set_saved_step(position_.saved ? position_.saved->step() : record_.plan().start_step());
  if (saving_) reply.set_saving_step(saving_->step);
  if (position_.evaluated) reply.set_evaluated_step(*position_.evaluated);
  reply.set_evaluation_round(position_.evaluation_round);
  if (record_.job().has_progress()) *reply.mutable_progress() = record_.job().progress();
  return reply;
}

void Job::NoteScheduled(const v1::Closure& closure) {
  if (closure.kind() == v1::CLOSURE_KIND_TRAIN) {
    position_.scheduled = std::max(position_.scheduled, closure.id());
  } else {
    position_.evaluation_round =
        std::max(position_.evaluation_round, static_cast<std::uint32_t>(closure.id() >> 32));
  }
}

void Job::Schedule(const v1::ScheduleRequest& request, Then<v1::ScheduleReply> asked) {
  if (const Status status = CheckCall(request.view(), request.driver()); !status.ok()) {
    return asked(status);
  }
  auto next = std::make_shared<int>(0);
  parked_.Add(kScheduleLimit, [this, request, next, then = Heard(std::move(asked))](bool last) {
    if (const Status status = CheckCall(request.view(), request.driver()); !status.ok()) {
      then(status);
      return true;
    }
    const bool evaluates =
        std::any_of(request.closures().begin(), request.closures().end(),
                    [](const v1::Closure& one) { return one.kind() == v1::CLOSURE_KIND_EVALUATE; });
    if (evaluates && !BuffersReady()) {
      if (!last) return false;
      then(ResourceExhausted("job {} waits for a worker's buffers to evaluate with: try again",
                             id()));
      return true;
    }
    ClosureQueue& queue = dispatcher_->queue();
    for (; *next < request.closures_size(); ++*next) {
      const v1::Closure& closure = request.closures(*next);
      const ClosureQueue::PutResult put = queue.Put({closure.kind(), closure.id()});
      if (put == ClosureQueue::PutResult::kFailed) {
        if (const auto error = RaiseError()) {
          then(*error);
          return true;
        }
        break;
      }
      if (put == ClosureQueue::PutResult::kFull) break;
      NoteScheduled(closure);
    }
    Pump();
    if (*next == request.closures_size()) {
      v1::ScheduleReply reply;
      reply.set_queued(queue.queued());
      then(std::move(reply));
      return true;
    }
    if (last) {
      then(ResourceExhausted("the queue of job {} is full ({}): try again", id(),
                             Counted(queue.queued(), "closure")));
    }
    return last;
  });
}

void Job::Join(const v1::JoinRequest& request, Then<v1::JoinReply> asked) {
  const std::uint64_t view = request.view(), driver = request.driver();
  if (const Status status = CheckCall(view, driver); !status.ok()) return asked(status);
  const Millis limit = std::min(Millis(request.timeout_ms()), kJoinMost);
  parked_.Add(limit, [this, view, driver, then = Heard(std::move(asked))](bool last) {
    if (const Status status = CheckCall(view, driver); !status.ok()) {
      then(status);
      return true;
    }
    const ClosureQueue& queue = dispatcher_->queue();
    if (const auto error = RaiseError()) {
      then(*error);
      return true;
    }
    const bool done = queue.idle() && !queue.failed();
    if (!done && !last) return false;
    v1::JoinReply reply;
    reply.set_done(done);
    reply.set_steps_done(StepsDone());
    reply.set_stop_requested(record_.stop_requested());
    then(std::move(reply));
    return true;
  });
}

Result<v1::FetchReply> Job::Fetch(const v1::FetchRequest& request) {
  MUSTER_TRY(CheckCall(request.view(), request.driver()));
  driver_.heard = true;
  v1::FetchReply reply;
  dispatcher_->TakeResults(request.kind(), reply);
  return reply;
}

void Job::SaveCheckpoint(const v1::SaveCheckpointRequest& request,
                         Then<v1::SaveCheckpointReply> asked) {
  if (const Status status = CheckCall(request.view(), request.driver()); !status.ok()) {
    return asked(status);
  }
  Then<v1::SaveCheckpointReply> then = Heard(std::move(asked));
  // Asked by a driver whose call was lost, or that has taken the place of one that had asked.
  if (saving_ && saving_->step == request.step()) {
    saving_->waiting.push_back(std::move(then));
    return;
  }
  if (saving_) return then(FailedPrecondition("a checkpoint of job {} is being saved", id()));
  if (!dispatcher_->queue().idle()) {
    return then(FailedPrecondition("job {} has {} queued and {} in flight: join first", id(),
                                   Counted(dispatcher_->queue().queued(), "closure"),
                                   dispatcher_->queue().in_flight()));
  }
  const std::uint64_t done = StepsDone();
  if (request.step() != done) {
    if (position_.raised) return then(*position_.raised);
    return then(FailedPrecondition("a checkpoint of step {} was asked for, but {} {} done",
                                   request.step(), Counted(done, "step"),
                                   Agreeing(done, "is", "are")));
  }
  if (position_.saved && position_.saved->step() == done) {
    v1::SaveCheckpointReply reply;
    reply.set_directory(position_.saved->directory());
    reply.set_bytes(position_.saved->bytes());
    return then(std::move(reply));
  }
  BeginSave(request.step(), std::move(then));
}

// Nothing is in flight, and until it is saved nothing is given out.
void Job::BeginSave(std::uint64_t step, Then<v1::SaveCheckpointReply> then) {
  auto save = std::make_shared<Save>();
  save->step = step;
  save->view = record_.plan().view();
  save->began = dispatcher_->dry_since().value_or(world_.scheduler.Now());
  save->waiting.push_back(std::move(then));
  saving_ = save;
  // The view may end while servers write: the driver is then told to open the job again.
  parked_.Add(Millis(24 * 3'600'000), [this, save](bool) {
    if (save->waiting.empty()) return true;
    const Status status = CheckView(save->view);
    if (status.ok()) return false;
    AnswerSave(*save, status);
    return true;
  });
  if (folder_silent_) {
    return OnCommitted(
        save, DeadlineExceeded("the checkpoint folder {} still does not answer", CheckpointRoot()));
  }
  world_.checkpoints.Prepare(CheckpointRoot(), save->step, world_.claimant(record_.job()),
                             FromFolder<std::string>(world_.options.folder_limit,
                                                     [this, save](Result<std::string> directory) {
                                                       if (!directory.ok())
                                                         return OnCommitted(save,
                                                                            directory.status());
                                                       save->directory = *directory;
                                                       SaveValues(save);
                                                     }));
}

void Job::SaveOnServers(std::shared_ptr<Save> save) {
  std::vector<TaskId> holders;
  for (const v1::PsAddress& address : record_.plan().ps()) {
    holders.push_back({"ps", static_cast<int>(address.index())});
  }
  if (HasHome() && home_) holders.push_back(*home_);
  save->left = holders.size();
  save->first = Ok();
  save->away = false;
  save->manifest.Clear();
  for (const v1::SaveReport& report : save->values) AddReport(report, save->manifest);
  for (const TaskId& task : holders) {
    auto answered = Guard([this, save, task](Result<v1::CommandResult> result) {
      if (result.ok()) {
        AddReport(result->saved(), save->manifest);
      } else if (save->first.ok()) {
        save->first = Annotate(result.status(), task.ToString());
      }
      if (--save->left == 0) OnShardsSaved(save);
    });
    const Member* member = world_.members.Find(task);
    if (member == nullptr) {
      save->away = true;
      world_.scheduler.Post([answered, task]() mutable {
        answered(Result<v1::CommandResult>(Unavailable("{} is not there", task.ToString())));
      });
      continue;
    }
    v1::Command command;
    v1::SaveVariables& variables = *command.mutable_save_variables();
    variables.set_job_id(id());
    variables.set_view(save->view);
    variables.set_step(save->step);
    variables.set_directory(save->directory);
    variables.set_epoch(world_.epoch.value());
    world_.commands.Send(*member, command, world_.options.save_limit, answered);
  }
}

void Job::OnShardsSaved(std::shared_ptr<Save> save) {
  const Status& status = save->first;
  if (status.code() == StatusCode::kUnavailable && (save->away || ++save->tries < kMostTries)) {
    // A server is away. Either its process comes back, or the view ends.
    (void)world_.scheduler.RunAfter(Millis(500), Guard([this, save] { SaveOnServers(save); }));
    return;
  }
  if (!status.ok()) return OnCommitted(save, status);
  v1::CheckpointManifest& manifest = save->manifest;
  manifest.set_format_version(1);
  manifest.set_job_id(id());
  manifest.set_job_name(record_.job().name());
  manifest.set_step(save->step);
  manifest.set_spec_hash(TrainingHash(record_.job().spec()));
  manifest.set_created_at(Rfc3339(WallMs()));
  const std::uint32_t keep = record_.job().spec().checkpoint().keep();
  world_.checkpoints.Commit(
      CheckpointRoot(), save->directory, manifest, keep > 0 ? keep : kKeepDefault,
      FromFolder<Checkpoints::Committed>(world_.options.save_limit, [this, save](auto committed) {
        OnCommitted(save, std::move(committed));
      }));
}

void Job::OnCommitted(std::shared_ptr<Save> save, Result<Checkpoints::Committed> committed) {
  const auto stall = std::chrono::duration_cast<Millis>(world_.scheduler.Now() - save->began);
  const Fields fields{{"step", std::to_string(save->step)},
                      {"stall_ms", std::to_string(stall.count())},
                      {"directory", save->directory}};
  if (!committed.ok()) {
    if (!save->directory.empty()) world_.checkpoints.Discard(save->directory);
    save_failure_ = Message(committed.status());
    Fields more = fields;
    more.emplace_back("code", std::string(CodeName(committed.status().code())));
    Tell("CHECKPOINT_FAILED",
         fmt::format("no checkpoint of step {}: {}; the job goes on, and the next one is tried",
                     save->step, save_failure_),
         nullptr, more);
    v1::SaveCheckpointReply reply;
    reply.set_failure(save_failure_);
    return AnswerSave(*save, reply);
  }
  v1::CheckpointInfo info;
  info.set_step(save->step);
  info.set_directory(save->directory);
  info.set_created_ms(WallMs());
  info.set_bytes(committed->bytes);
  info.set_stall_ms(static_cast<std::uint64_t>(stall.count()));
  std::erase_if(checkpoints_, [&](const v1::CheckpointInfo& old) {
    const bool gone =
        old.step() == info.step() ||
        (committed->kept && std::find(committed->kept->begin(), committed->kept->end(),
                                      old.directory()) == committed->kept->end());
    if (gone) (void)world_.journal.DeleteCheckpoint(id(), old.step());
    return gone;
  });
  save_failure_.clear();
  position_.saved = info;
  ++settled_;
  refused_.erase(info.directory());
  checkpoints_.push_back(info);
  (void)world_.journal.SaveCheckpoint(id(), info);
  record_.mutable_job()->set_checkpoint_stall_ms(info.stall_ms());
  Tell("CHECKPOINT_SAVED",
       fmt::format("checkpoint of step {} saved: {} bytes, training waited {} ms{}", info.step(),
                   info.bytes(), info.stall_ms(),
                   committed->retention.ok()
                       ? std::string()
                       : "; old ones could not be removed: " + Message(committed->retention)),
       nullptr, fields);
  v1::SaveCheckpointReply reply;
  reply.set_directory(info.directory());
  reply.set_bytes(info.bytes());
  AnswerSave(*save, reply);
}

void Job::AnswerSave(Save& save, const Result<v1::SaveCheckpointReply>& reply) {
  if (saving_.get() == &save) saving_.reset();
  for (const auto& then : std::exchange(save.waiting, {})) then(reply);
  parked_.Recheck();
  Pump();
  TryCut();
}

Result<v1::ReportProgressReply> Job::ReportProgress(const v1::ReportProgressRequest& request) {
  MUSTER_TRY(CheckCall(request.view(), request.driver()));
  driver_.heard = true;
  v1::Job& job = *record_.mutable_job();
  *job.mutable_progress() = request.progress();
  if (request.has_evaluation()) {
    *job.mutable_evaluation() = request.evaluation();
    position_.evaluated = request.evaluation().step();
  }
  Touch();
  (void)Persist();
  v1::ReportProgressReply reply;
  reply.set_stop_requested(record_.stop_requested());
  return reply;
}

Status Job::FinishJob(const v1::FinishJobRequest& request) {
  const bool repeated =
      ended() && driver_.finished && driver_.number != 0 && request.driver() == driver_.number;
  if (repeated) return Written();
  MUSTER_TRY(CheckCall(request.view(), request.driver()));
  driver_.finished = driver_.heard = true;
  v1::Job& job = *record_.mutable_job();
  if (request.has_evaluation()) *job.mutable_evaluation() = request.evaluation();
  const Status status =
      MakeStatus(static_cast<StatusCode>(request.status().code()), request.status().message());
  std::string unsaved;
  if (!save_failure_.empty()) {
    const auto newest = std::find_if(checkpoints_.rbegin(), checkpoints_.rend(),
                                     [](const auto& info) { return info.refused().empty(); });
    unsaved = fmt::format("the newest steps are not saved: {}; {}", save_failure_,
                          newest == checkpoints_.rend()
                              ? NoSoundCheckpoint()
                              : fmt::format("the newest checkpoint is of step {}", newest->step()));
  }
  if (status.ok() && position_.raised) {
    Fail(*position_.raised);
  } else if (status.ok() && unsaved.empty()) {
    End(v1::JOB_STATE_SUCCEEDED, Ok(), "done: " + Counted(record_.steps_done(), "step"));
  } else if (status.ok()) {
    // A trained model that nobody can have is no success.
    const std::string text = fmt::format(
        "all {} steps were done, but {}. Make room, and submit the same job again: it goes on from "
        "there; so does one of another name with the same checkpoint.directory",
        record_.steps_done(), unsaved);
    End(v1::JOB_STATE_FAILED, ResourceExhausted("{}", text), text, "CHECKPOINT_FAILED");
  } else if (status.code() == StatusCode::kCancelled) {
    End(v1::JOB_STATE_CANCELLED, status,
        unsaved.empty() ? Message(status) : Message(status) + "; " + unsaved);
  } else {
    Fail(status);
  }
  return Written();
}

}  // namespace muster::coordinator
