// The cluster, or a task that the job needs, was asked to end: what is in flight finishes, and a
// checkpoint of it is saved, so that nothing is done twice afterwards. The driver's part is to give
// out no more, and to say when the rest is done.
#include "coordinator/model_job.h"
#include "coordinator/view.h"

namespace muster::coordinator {

bool View::IsDraining(const TaskId& task) const {
  const Member* member = world_.members.Find(task);
  return member != nullptr && member->state == Member::State::kDraining;
}

bool View::Leaving() const { return open() && (world_.draining || NeedsDrainingTask()); }

std::uint64_t View::SavedStep() const {
  return position_.saved ? position_.saved->step() : story_.plan().start_step();
}

// Who was asked to end, or who is there, has changed.
void View::UpdateCut() {
  if (!Leaving()) {
    if (std::exchange(cut_, Cut::kNone) == Cut::kNone) return;
    RefreshReason();
    return SetPace();
  }
  if (cut_ == Cut::kNone) cut_ = Cut::kWanted;
  RefreshReason();
  SetPace();
  TryCut();
}

// Saves as soon as the driver says that everything which was given out is done.
void View::TryCut() {
  if (cut_ != Cut::kWanted || !open()) return;
  if (!missing_.empty()) {
    return GiveUpCut(missing_.begin()->first.ToString() + " is lost");
  }
  const bool drained = pace_.kind() == v1::ModelPace::KIND_DRAIN && drained_ == pace_.number();
  if (saving_ || !drained) return;
  const std::uint64_t done = StepsDone();
  if (done == SavedStep()) return SettleCut();
  BeginSave(done, Guard([this](const Result<v1::SaveCheckpointReply>& reply) {
              if (!reply.ok()) return GiveUpCut(Message(reply.status()));
              if (!reply->failure().empty()) return GiveUpCut(reply->failure());
              TryCut();
            }));
}

void View::GiveUpCut(const std::string& why) {
  if (cut_ != Cut::kWanted) return;
  const std::uint64_t saved = SavedStep();
  story_.Tell(
      "DRAIN_UNSAVED",
      fmt::format("no checkpoint of step {} could be saved before the end: {}; the job will go on "
                  "from step {}",
                  StepsDone(), why, saved),
      nullptr,
      {{"step", std::to_string(StepsDone())}, {"saved", std::to_string(saved)}, {"why", why}});
  SettleCut();
}

void View::SettleCut() {
  cut_ = Cut::kSettled;
  // The next coordinator tells by this how many steps were lost.
  story_.Persist();
  if (story_.record().stop_requested()) {
    return job_.End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
                    fmt::format("stopped as asked at step {}", StepsDone()));
  }
  RefreshReason();
  if (world_.on_settled) world_.on_settled();
}

}  // namespace muster::coordinator
