// The checkpoints that a view saves: at a cut, with nothing in flight.
#include "common/base/wall_time.h"
#include "common/base/words.h"
#include "coordinator/model_job.h"
#include "coordinator/plan.h"
#include "coordinator/view.h"
#include "coordinator/view_save.h"

namespace muster::coordinator {
namespace {

// A server that is there and says that it cannot is not asked without end.
constexpr int kMostTries = 20;

void AddReport(const v1::SaveReport& report, v1::CheckpointManifest& manifest) {
  *manifest.add_files() = report.file();
  for (const v1::TensorSlice& slice : report.slices()) *manifest.add_slices() = slice;
}

}  // namespace

std::optional<std::uint64_t> View::SavingStep() const {
  return saving_ ? std::optional(saving_->step) : std::nullopt;
}

// The driver has joined. It may ask again: then it waits for the one that is under way, or is told
// of the one that was saved.
void View::SaveCheckpoint(std::uint64_t step, Then<v1::SaveCheckpointReply> then) {
  // Asked by a driver whose call was lost, or that has taken the place of one that had asked.
  if (saving_ && saving_->step == step) {
    saving_->waiting.push_back(std::move(then));
    return;
  }
  if (saving_)
    return then(FailedPrecondition("a checkpoint of job {} is being saved", story_.id()));
  const std::uint64_t done = StepsDone();
  if (step != done) {
    return then(FailedPrecondition("a checkpoint of step {} was asked for, but {} {} done", step,
                                   Counted(done, "step"), Agreeing(done, "is", "are")));
  }
  if (position_.saved && position_.saved->step() == done) {
    v1::SaveCheckpointReply reply;
    reply.set_directory(position_.saved->directory());
    reply.set_bytes(position_.saved->bytes());
    return then(std::move(reply));
  }
  BeginSave(step, std::move(then));
}

// Nothing is in flight, and until it is saved nothing is given out.
void View::BeginSave(std::uint64_t step, Then<v1::SaveCheckpointReply> then) {
  auto save = std::make_shared<Save>();
  save->step = step;
  save->view = ViewId(story_.plan().view());
  save->began = world_.scheduler.Now();
  save->waiting.push_back(std::move(then));
  saving_ = save;
  SetPace();
  if (*lasting_.folder_silent) {
    return OnCommitted(save, DeadlineExceeded("the checkpoint folder {} still does not answer",
                                              story_.CheckpointRoot()));
  }
  world_.checkpoints.Prepare(
      story_.CheckpointRoot(), save->step, world_.claimant(story_.record().job()),
      FromFolder<std::string>(world_.options.folder_limit,
                              [this, save](Result<std::string> directory) {
                                if (!directory.ok()) return OnCommitted(save, directory.status());
                                save->directory = *directory;
                                SaveValues(save);
                              }));
}

// Asks all who hold variables at once.
void View::SaveOnHolders(std::shared_ptr<Save> save) {
  const std::vector<TaskId> holders = Holders();
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
    variables.set_job_id(story_.id());
    variables.set_view(save->view.value());
    variables.set_step(save->step);
    variables.set_directory(save->directory);
    variables.set_epoch(world_.epoch.value());
    world_.commands.Send(*member, command, world_.options.save_limit, answered);
  }
}

// All have answered: the manifest makes a checkpoint of their files.
void View::OnShardsSaved(std::shared_ptr<Save> save) {
  const Status& status = save->first;
  if (status.code() == StatusCode::kUnavailable && (save->away || ++save->tries < kMostTries)) {
    // A server is away. Either its process comes back, or the view ends.
    (void)world_.scheduler.RunAfter(Millis(500), Guard([this, save] { SaveOnHolders(save); }));
    return;
  }
  if (!status.ok()) return OnCommitted(save, status);
  v1::CheckpointManifest& manifest = save->manifest;
  manifest.set_format_version(1);
  manifest.set_job_id(story_.id());
  manifest.set_job_name(story_.record().job().name());
  manifest.set_step(save->step);
  manifest.set_spec_hash(TrainingHash(story_.spec()));
  manifest.set_created_at(UtcText(story_.WallMs() / 1'000));
  world_.checkpoints.Commit(
      story_.CheckpointRoot(), save->directory, manifest, KeptCheckpoints(story_.spec()),
      story_.refused(),
      FromFolder<Checkpoints::Committed>(world_.options.save_limit, [this, save](auto committed) {
        OnCommitted(save, std::move(committed));
      }));
}

// The save has ended, well or not; either way the job goes on.
void View::OnCommitted(std::shared_ptr<Save> save, Result<Checkpoints::Committed> committed) {
  const auto stall = std::chrono::duration_cast<Millis>(world_.scheduler.Now() - save->began);
  const Story::Fields fields{{"step", std::to_string(save->step)},
                             {"stall_ms", std::to_string(stall.count())},
                             {"directory", save->directory}};
  if (!committed.ok()) {
    if (!save->directory.empty()) world_.checkpoints.Discard(save->directory);
    lasting_.save_failure = Message(committed.status());
    Story::Fields more = fields;
    more.emplace_back("code", std::string(CodeName(committed.status().code())));
    story_.Tell(
        "CHECKPOINT_FAILED",
        fmt::format("no checkpoint of step {}: {}; the job goes on, and the next one is tried",
                    save->step, lasting_.save_failure),
        nullptr, more);
    v1::SaveCheckpointReply reply;
    reply.set_failure(lasting_.save_failure);
    return AnswerSave(*save, reply);
  }
  v1::CheckpointInfo info;
  info.set_step(save->step);
  info.set_directory(save->directory);
  info.set_created_ms(story_.WallMs());
  info.set_bytes(committed->bytes);
  info.set_stall_ms(static_cast<std::uint64_t>(stall.count()));
  lasting_.save_failure.clear();
  position_.saved = info;
  ++lasting_.settled;
  story_.AddCheckpoint(info, committed->kept);
  story_.record().mutable_job()->set_checkpoint_stall_ms(info.stall_ms());
  story_.Tell("CHECKPOINT_SAVED",
              fmt::format("checkpoint of step {} saved: {} bytes, training waited {} ms{}",
                          info.step(), info.bytes(), info.stall_ms(),
                          committed->retention.ok() ? std::string()
                                                    : "; old ones could not be removed: " +
                                                          Message(committed->retention)),
              nullptr, fields);
  v1::SaveCheckpointReply reply;
  reply.set_directory(info.directory());
  reply.set_bytes(info.bytes());
  AnswerSave(*save, reply);
  job_.OnCheckpointSaved();
}

void View::AnswerSave(Save& save, const Result<v1::SaveCheckpointReply>& reply) {
  if (saving_.get() == &save) saving_.reset();
  for (const auto& then : std::exchange(save.waiting, {})) then(reply);
  story_.parked().Recheck();
  SetPace();
  TryCut();
}

void View::RefuseSaves(const Status& why) {
  if (!saving_) return;
  for (const auto& then : std::exchange(saving_->waiting, {})) then(why);
}

}  // namespace muster::coordinator
