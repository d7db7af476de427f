// From the beginning of a view until it is open.
#include "coordinator/view.h"

#include <algorithm>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "common/messages/steps.h"
#include "common/storage/checkpoint.h"
#include "coordinator/model_job.h"
#include "coordinator/plan.h"
#include "coordinator/view_save.h"

namespace muster::coordinator {
namespace {

// What keeps a task from reading a checkpoint that is good: its host's disk or mount.
bool CannotRead(const Status& status) {
  return status.code() == StatusCode::kUnknown || status.code() == StatusCode::kNotFound ||
         status.code() == StatusCode::kPermissionDenied;
}

v1::JobState Beginning(bool again) {
  return again ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_STARTING;
}

}  // namespace

ClosureKey KeyOf(const v1::Closure& closure) { return {closure.kind(), closure.id()}; }

std::string Ids(std::span<const ClosureKey> closures) {
  std::string text;
  for (const ClosureKey& key : closures) text += (text.empty() ? "" : ",") + std::to_string(key.id);
  return text;
}

View::View(ModelJob& job)
    : job_(job), world_(job.world()), story_(job.story()), lasting_(job.lasting()) {}

View::~View() = default;

void View::Begin() {
  if (job_.adopts()) {
    phase_ = Phase::kAdopting;
    story_.SetState(v1::JOB_STATE_RESTORING, "ADOPTING",
                    "asks those who hold its variables how far they are");
    return RecallBuffers();
  }
  const bool again = story_.plan().view() > 0;
  story_.SetState(Beginning(again), again ? "RESTORING" : "CREATING_VARIABLES",
                  "looking for a checkpoint");
  WatchTheFolder();
  if (story_.record().begin_anew()) return SetCheckpointsAside();
  FindCheckpoint();
}

void View::Leave() {
  phase_ = Phase::kGone;
  lifeline_.End();
}

// Takes a number, writes it, and has the variables made under it.
void View::CreateVariables(const Checkpoints::Found& found) {
  v1::JobRecord& record = story_.record();
  Result<v1::JobPlan> plan = MakePlan(record, Servers());
  if (!plan.ok()) return job_.Fail(plan.status());
  const bool again = record.plan().view() > 0;
  if (again) lasting_.lost_from = std::max(lasting_.lost_from, record.steps_done());
  plan->set_epoch(world_.epoch.value());
  plan->set_view(record.plan().view() + 1);
  plan->set_start_step(found.step);
  *record.mutable_plan() = *plan;
  record.set_steps_done(found.step);
  world_.marks.Set(JobNumber(record.number()), ViewId(plan->view()), found.step);
  position_.scheduled = position_.done = found.step;
  // An evaluation of a later step belongs to parameters that are given up.
  if (record.job().has_evaluation() && record.job().evaluation().step() <= found.step) {
    position_.evaluated = record.job().evaluation().step();
  }
  buffers_ = found.buffers;
  record.mutable_job()->set_view(plan->view());
  *record.mutable_job()->mutable_variables() = plan->variables();
  phase_ = Phase::kCreating;
  story_.SetState(Beginning(again), "CREATING_VARIABLES",
                  "the coordinator writes the view's number to its database");
  // The number of the view must be on disk before anybody obeys it.
  story_.Persist(Guard([this, found, again](const Status& status) {
    if (!status.ok()) {
      return job_.RetryAfter(Millis(1'000), "JOURNAL_UNAVAILABLE", Message(status));
    }
    TellRestored(found, again);
    const auto servers = static_cast<std::uint64_t>(story_.plan().ps_size());
    if (servers > 0) {
      story_.SetState(Beginning(again), "CREATING_VARIABLES",
                      fmt::format("{} {} the variables", Counted(servers, "parameter server"),
                                  Agreeing(servers, "makes", "make")));
    }
    MakeVariables(found.directory);
  }));
}

void View::TellRestored(const Checkpoints::Found& found, bool again) {
  const v1::JobPlan& plan = story_.plan();
  const std::uint64_t lost_from = std::exchange(lasting_.lost_from, 0);
  // Not at each try.
  const bool told = std::exchange(lasting_.restored_told, found.step) == found.step;
  if (again && !told) {
    const std::uint64_t lost = lost_from > found.step ? lost_from - found.step : 0;
    const std::string from =
        found.directory.empty() ? fmt::format("its initial values ({})", story_.NoSoundCheckpoint())
                                : fmt::format("the checkpoint of step {}", found.step);
    story_.Tell(
        "JOB_RESTORED",
        fmt::format("goes back to {}: {}", from,
                    lost == 0 ? "no step is lost"
                              : fmt::format("{} done since {} lost and done again",
                                            Counted(lost, "step"), Agreeing(lost, "is", "are"))),
        nullptr,
        {{"view", std::to_string(plan.view())},
         {"step", std::to_string(found.step)},
         {"steps_lost", std::to_string(lost)},
         {"ps", std::to_string(plan.ps_size())},
         {"directory", found.directory}});
  } else if (!again && !found.directory.empty()) {
    story_.Tell("CHECKPOINT_FOUND",
                fmt::format("begins from the checkpoint of step {}", found.step), nullptr,
                {{"step", std::to_string(found.step)}, {"directory", found.directory}});
  }
}

void View::OnVariablesMade(const Status& status, const std::string& restored_from) {
  if (!status.ok()) {
    if (status.code() == StatusCode::kDataLoss && !restored_from.empty()) {
      story_.MarkRefused(
          {restored_from, storage::StepOfDirectory(restored_from).value_or(0), Message(status)});
      return job_.BeginView();
    }
    if (!restored_from.empty() && CannotRead(status)) return WaitForCheckpoints(status);
    if (IsTransient(status.code())) {
      return job_.RetryAfter(Millis(1'000), "CREATING_VARIABLES",
                             "could not make the variables, tries again: " + Message(status));
    }
    // They had room for the view before this one, which a request on its way may still hold.
    if (status.code() == StatusCode::kResourceExhausted && story_.plan().view() > 1 &&
        ++lasting_.without_room < world_.options.room_limit) {
      const std::string text = "no room for the variables yet, tries again: " + Message(status);
      if (lasting_.without_room == 1) story_.Tell("SERVERS_FULL", text);
      return job_.RetryAfter(Millis(5'000), "SERVERS_FULL", text);
    }
    return job_.Fail(status);
  }
  lasting_.without_room = 0;
  lasting_.unreadable_told.clear();
  restored_from_ = restored_from;
  BeginExecutors();
}

void View::BeginExecutors() {
  phase_ = Phase::kStarting;
  story_.SetState(story_.record().job().state(), "STARTING_EXECUTORS",
                  "workers start the job's executors");
  StartExecutors();
}

// The first executor is ready.
void View::Open() {
  phase_ = Phase::kOpen;
  lasting_.restored_told.reset();
  SetPace();
  OnOpen();
  const v1::JobPlan& plan = story_.plan();
  v1::Job& job = *story_.record().mutable_job();
  if (job.started_ms() == 0) job.set_started_ms(story_.WallMs());
  if (adopted_) TellAdopted();
  story_.Tell("JOB_RUNNING",
              fmt::format("running from step {} of {} on {} (view {})", StepsDone(),
                          plan.total_steps(), WhereVariablesLive(), plan.view()),
              nullptr,
              {{"view", std::to_string(plan.view())}, {"step", std::to_string(StepsDone())}});
  story_.SetState(v1::JOB_STATE_RUNNING, "", "");
  story_.Persist();
  job_.OnViewOpen();
  story_.parked().Recheck();
  UpdateCut();
}

}  // namespace muster::coordinator
