// The job's folder of checkpoints, when a view begins.
#include <algorithm>

#include "coordinator/model_job.h"
#include "coordinator/plan.h"
#include "coordinator/view.h"

namespace muster::coordinator {
namespace {

constexpr Millis kUnreadableAgain{2'000};

std::string Sentence(const Checkpoints::Aside& aside) {
  std::string text = fmt::format(
      "its checkpoints are in {} now; delete them when they are not needed (the newest {} of such "
      "folders stay)",
      aside.directory, Checkpoints::kKeptAside);
  for (const std::string& removed : aside.removed) text += fmt::format("; {} was removed", removed);
  if (!aside.retention.ok()) text += "; an older one stays: " + Message(aside.retention);
  return text;
}

}  // namespace

void View::WatchTheFolder() {
  (void)world_.scheduler.RunAfter(
      world_.options.folder_limit, Guard([this] {
        if (phase_ != Phase::kFinding) return;
        const std::string text = fmt::format(
            "the checkpoint folder {} has not answered for {} s: is its file system "
            "there? The job waits for it",
            story_.CheckpointRoot(), world_.options.folder_limit.count() / 1000);
        story_.Tell("CHECKPOINTS_UNREADABLE", text, nullptr,
                    {{"directory", story_.CheckpointRoot()},
                     {"code", std::string(CodeName(StatusCode::kDeadlineExceeded))}});
        story_.SetState(story_.record().job().state(), "CHECKPOINTS_UNREADABLE", text);
      }));
}

// The job begins anew: what it saved before is moved out of the way, then none is found.
void View::SetCheckpointsAside() {
  world_.checkpoints.SetAside(story_.CheckpointRoot(), world_.claimant(story_.record().job()),
                              Guard([this](const Result<Checkpoints::Aside>& aside) {
                                if (!aside.ok()) {
                                  // Another's folder, or one that cannot be written.
                                  if (aside.status().code() == StatusCode::kFailedPrecondition) {
                                    return job_.Fail(aside.status());
                                  }
                                  return WaitForCheckpoints(aside.status());
                                }
                                story_.ForgetCheckpoints();
                                if (!aside->directory.empty()) {
                                  story_.Tell("CHECKPOINTS_SET_ASIDE", Sentence(*aside), nullptr,
                                              {{"directory", aside->directory}});
                                }
                                // Written with the view's number; asked for again before that,
                                // there is nothing to move.
                                story_.record().set_begin_anew(false);
                                job_.OnCheckpointsSetAside();
                                FindCheckpoint();
                              }));
}

Checkpoints::Search View::NewestOfJob() const {
  Checkpoints::Search search{
      story_.CheckpointRoot(),
      [spec = story_.spec()](const auto& manifest) { return GoesOnFrom(spec, manifest); },
      story_.refused(),
      {},
      world_.claimant(story_.record().job())};
  for (const v1::CheckpointInfo& info : story_.checkpoints()) {
    if (info.refused().empty()) search.known.push_back(info.directory());
  }
  return search;
}

void View::FindCheckpoint() {
  world_.checkpoints.FindNewest(NewestOfJob(), Guard([this](Result<Checkpoints::Found> found) {
                                  OnCheckpointFound(std::move(found));
                                }));
}

void View::WaitForCheckpoints(const Status& why) {
  const std::string text = Message(why);
  if (std::exchange(lasting_.unreadable_told, text) != text) {
    story_.Tell(
        "CHECKPOINTS_UNREADABLE",
        fmt::format("{}; the job waits and tries again every {} s", text,
                    kUnreadableAgain.count() / 1000),
        nullptr,
        {{"directory", story_.CheckpointRoot()}, {"code", std::string(CodeName(why.code()))}});
  }
  job_.RetryAfter(kUnreadableAgain, "CHECKPOINTS_UNREADABLE", text);
}

// A coordinator may have ended after it had saved a checkpoint, and before it wrote that down.
void View::ListFound(const Checkpoints::Found& found) {
  const bool listed = std::ranges::any_of(
      story_.checkpoints(), [&](const auto& info) { return info.directory() == found.directory; });
  if (listed) return;
  v1::CheckpointInfo info;
  info.set_step(found.step);
  info.set_directory(found.directory);
  info.set_created_ms(story_.WallMs());
  info.set_bytes(found.bytes);
  story_.AddCheckpoint(info, std::nullopt);
}

void View::OnCheckpointFound(Result<Checkpoints::Found> found) {
  if (!found.ok()) {
    // Another's folder, another's spec.
    if (found.status().code() == StatusCode::kFailedPrecondition) return job_.Fail(found.status());
    return WaitForCheckpoints(found.status());
  }
  if (!found->taken_over.empty()) story_.Tell("CHECKPOINTS_TAKEN_OVER", found->taken_over);
  for (const Checkpoints::Refusal& refusal : found->refused) story_.MarkRefused(refusal);
  if (found->job_id == story_.id()) ListFound(*found);
  if (!job_.TasksAreThere()) return;
  CreateVariables(*found);
}

}  // namespace muster::coordinator
