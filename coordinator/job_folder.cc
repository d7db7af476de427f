// The job's folder of checkpoints, when a view begins.
#include "coordinator/job.h"
#include "coordinator/plan.h"

namespace muster::coordinator {
namespace {

constexpr Millis kUnreadableAgain{2'000};

}  // namespace

void Job::WatchTheFolder() {
  (void)world_.scheduler.RunAfter(
      world_.options.folder_limit, Guard([this] {
        if (phase_ != Phase::kFinding) return;
        const std::string text = fmt::format(
            "the checkpoint folder {} has not answered for {} s: is its file system "
            "there? The job waits for it",
            CheckpointRoot(), world_.options.folder_limit.count() / 1000);
        Tell("CHECKPOINTS_UNREADABLE", text);
        SetState(record_.job().state(), "CHECKPOINTS_UNREADABLE", text);
      }));
}

void Job::SetCheckpointsAside() {
  world_.checkpoints.SetAside(
      CheckpointRoot(), world_.claimant(record_.job()),
      Guard([this](const Result<std::string>& aside) {
        if (!aside.ok()) {
          // Another's folder, or one that cannot be written.
          if (aside.status().code() == StatusCode::kFailedPrecondition) {
            return Fail(aside.status());
          }
          return WaitForCheckpoints(aside.status());
        }
        for (const v1::CheckpointInfo& info : checkpoints_) {
          (void)world_.journal.DeleteCheckpoint(id(), info.step());
        }
        checkpoints_.clear();
        if (!aside->empty()) {
          Tell("CHECKPOINTS_SET_ASIDE",
               fmt::format("its checkpoints are in {} now; delete them when they are not needed",
                           *aside),
               nullptr, {{"directory", *aside}});
        }
        // Written with the view's number; asked for again before that, there is nothing to move.
        record_.set_begin_anew(false);
        FindCheckpoint();
      }));
}

void Job::FindCheckpoint() {
  Checkpoints::Search search{
      CheckpointRoot(),
      [spec = record_.job().spec()](const auto& manifest) { return GoesOnFrom(spec, manifest); },
      refused_,
      {},
      world_.claimant(record_.job())};
  for (const v1::CheckpointInfo& info : checkpoints_) {
    if (info.refused().empty()) search.known.push_back(info.directory());
  }
  world_.checkpoints.FindNewest(search, Guard([this](Result<Checkpoints::Found> found) {
                                  OnCheckpointFound(std::move(found));
                                }));
}

void Job::WaitForCheckpoints(const Status& why) {
  const std::string text = Message(why);
  if (std::exchange(unreadable_told_, text) != text) {
    Tell("CHECKPOINTS_UNREADABLE",
         fmt::format("{}; the job waits and tries again every {} s", text,
                     kUnreadableAgain.count() / 1000),
         nullptr, {{"directory", CheckpointRoot()}, {"code", std::string(CodeName(why.code()))}});
  }
  RetryAfter(kUnreadableAgain, "CHECKPOINTS_UNREADABLE", text);
}

void Job::OnCheckpointFound(Result<Checkpoints::Found> found) {
  if (!found.ok()) {
    // Another's folder, another's spec.
    if (found.status().code() == StatusCode::kFailedPrecondition) return Fail(found.status());
    return WaitForCheckpoints(found.status());
  }
  if (!found->taken_over.empty()) Tell("CHECKPOINTS_TAKEN_OVER", found->taken_over);
  for (const Checkpoints::Refusal& refusal : found->refused) MarkRefused(refusal);
  CreateVariables(*found);
}

}  // namespace muster::coordinator
