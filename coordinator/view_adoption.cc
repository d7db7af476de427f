// A view that a coordinator before this one began goes on, if those who hold its variables still
// do: it keeps its number, and no step is lost.
#include <algorithm>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "common/messages/steps.h"
#include "coordinator/model_job.h"
#include "coordinator/view.h"

namespace muster::coordinator {

// All who hold the variables have answered, or one of them could not.
void View::OnHoldersAsked(const Status& status, const std::vector<v1::AdoptReport>& reports) {
  if (!status.ok()) {
    if (!IsTransient(status.code())) return GiveUpAdoption(Message(status));
    return job_.RetryAfter(Millis(1'000), "ADOPTING",
                           "asks for the state of its variables again: " + Message(status));
  }
  std::optional<AppliedClosures> applied = AppliedIn(reports);
  if (!applied) return GiveUpAdoption("nobody holds any of its variables");
  if (applied->highest == story_.plan().start_step() && MustBeMadeAnew()) {
    return GiveUpAdoption("not all variables may have had their initial values");
  }
  // What belongs to a synchronous step that has been begun was scheduled with it.
  applied->highest = StepsOf(story_.plan()).CutFrom(applied->highest);
  GoOn(*applied);
}

// Takes the view over as it is: what is done stays so, what is not runs again.
void View::GoOn(const AppliedClosures& applied) {
  v1::JobRecord& record = story_.record();
  v1::JobPlan& plan = *record.mutable_plan();
  plan.set_epoch(world_.epoch.value());
  // The next driver does all that may have been begun; what is done already changes nothing.
  const bool from_first = !applied.everywhere.empty() && applied.everywhere.front().first == 1;
  position_.done = std::max(from_first ? applied.everywhere.front().last : 0, plan.start_step());
  position_.scheduled = std::max(applied.highest, position_.done);
  const std::uint64_t known = record.steps_done();
  adopted_ = Adopted{.lost = known > StepsDone() ? known - StepsDone() : 0,
                     .again = position_.scheduled - position_.done};
  record.set_steps_done(StepsDone());
  world_.marks.Set(JobNumber(record.number()), ViewId(plan.view()), StepsDone());
  if (record.job().has_evaluation() && record.job().evaluation().step() <= StepsDone()) {
    position_.evaluated = record.job().evaluation().step();
  }
  for (const v1::CheckpointInfo& info : story_.checkpoints()) {
    const bool of_this = info.step() > plan.start_step() && info.step() <= StepsDone();
    if (of_this && info.refused().empty()) position_.saved = info;
  }
  job_.EndAdoption();
  BeginExecutors();
}

// Its variables are gone: the last checkpoint, in a new view.
void View::GiveUpAdoption(const std::string& why) {
  job_.EndAdoption();
  story_.Tell("VIEW_GIVEN_UP",
              fmt::format("cannot go on where it stood when the coordinator was lost: {}", why),
              nullptr, {{"view", std::to_string(story_.plan().view())}, {"why", why}});
  if (story_.record().stop_requested()) {
    return job_.End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
                    "stopped; the coordinator was lost with variables of the job, so the steps "
                    "since the last checkpoint are lost");
  }
  job_.BeginView();
}

void View::TellAdopted() {
  Story::Fields fields{{"view", std::to_string(story_.plan().view())},
                       {"step", std::to_string(StepsDone())},
                       {"steps_lost", std::to_string(adopted_->lost)},
                       {"closures", std::to_string(adopted_->again)}};
  std::string stood_still;
  if (const auto since = job_.away_since()) {
    const Millis gap = std::max(
        Millis(0), std::chrono::duration_cast<Millis>(world_.scheduler.WallNow() - *since));
    fields.emplace_back("gap_ms", std::to_string(gap.count()));
    stood_still =
        fmt::format("; {:.1f} s have passed since the coordinator before this one was last alive",
                    static_cast<double>(gap.count()) / 1000);
  }
  story_.Tell(
      "VIEW_ADOPTED",
      fmt::format("goes on where it stood: {} lost, {} of {} done{}{}",
                  Counted(adopted_->lost, "step"), StepsDone(), story_.plan().total_steps(),
                  adopted_->again == 0 ? ""
                                       : fmt::format("; {} that had been begun {} again",
                                                     Counted(adopted_->again, "closure"),
                                                     Agreeing(adopted_->again, "runs", "run")),
                  stood_still),
      nullptr, fields);
}

}  // namespace muster::coordinator
