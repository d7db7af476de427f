#include "coordinator/home_view.h"

#include <algorithm>

#include "common/base/words.h"
#include "common/config/job_yaml/validate_strategy.h"
#include "common/storage/checkpoint.h"
#include "coordinator/allocation.h"
#include "coordinator/model_job.h"

namespace muster::coordinator {

std::vector<std::string> HomeKind::Missing() const {
  if (!adopts() || home_given_up_ || !story_.plan().has_home()) return {};
  const TaskId home{"worker", static_cast<int>(story_.plan().home())};
  if (world_.members.IsOut(home)) return {};
  const Member* member = world_.members.Known(home);
  if (member != nullptr && member->alive()) return {};
  return {fmt::format("{}, which holds its variables ({})", home.ToString(),
                      member == nullptr ? "has not come back" : "lost: " + member->how)};
}

// The view is given up when it begins without it.
bool HomeKind::MakeDo() {
  home_given_up_ = true;
  return false;
}

std::unique_ptr<View> HomeKind::NewView(ModelJob& job) {
  return std::make_unique<HomeView>(job, *this);
}

// Counts the end, whoever is to blame.
std::optional<std::string> HomeKind::BlameFor(const ClosureKey& closure, bool in_flight,
                                              v1::ExecutorVerdict::Cause cause, bool worker_lost,
                                              const std::string& what) {
  const bool same = std::exchange(crashed_, closure) == closure;
  crashes_ = same ? crashes_ + 1 : 1;
  own_crashes_ =
      (same ? own_crashes_ : 0) + (cause == v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE ? 0 : 1);
  if (worker_lost ||
      (own_crashes_ < world_.options.crash_limit && crashes_ < world_.options.kill_limit)) {
    return std::nullopt;
  }
  const std::string where =
      in_flight ? fmt::format("closure {}", closure.id) : fmt::format("after step {}", closure.id);
  return fmt::format("{} has ended its executor {} ({})", where,
                     Counted(static_cast<std::uint64_t>(crashes_), "time"), what);
}

// They are made by the executor, when it starts.
void HomeView::MakeVariables(const std::string& restored_from) {
  OnVariablesMade(Ok(), restored_from);
}

// The executor of the home goes on; it has done what it says, and has nothing left to do.
void HomeView::AskHolders() {
  if (!story_.plan().has_home()) return OnHoldersAsked(NotFound("no worker had begun with it"), {});
  const TaskId home{"worker", static_cast<int>(story_.plan().home())};
  const Member* member = world_.members.Find(home);
  if (member == nullptr) {
    return OnHoldersAsked(
        NotFound("{}, which held its variables, has not come back", home.ToString()), {});
  }
  v1::Command command;
  v1::StartExecutor& start = *command.mutable_start_executor();
  *start.mutable_plan() = story_.plan();
  start.mutable_plan()->set_epoch(world_.epoch.value());
  start.set_adopt(true);
  world_.commands.Send(
      *member, command, world_.options.command_limit,
      Guard([this, home, session = member->session](const Result<v1::CommandResult>& result) {
        if (!result.ok()) return OnHoldersAsked(Annotate(result.status(), home.ToString()), {});
        home_ = home;
        Executor& executor = executors_[home];
        executor.session = session;
        TakeExecutor(home, result->adopted());
        // It says next where it serves; then the view is open.
        OnHoldersAsked(Ok(), {result->adopted()});
      }));
}

std::vector<TaskId> HomeView::Holders() const {
  return home_ ? std::vector<TaskId>{*home_} : std::vector<TaskId>();
}

std::string HomeView::WhereVariablesLive() const {
  const v1::StrategySpec& strategy = story_.spec().strategy();
  const std::string kind = config::NameOf(strategy.kind());
  const std::string worker = home_ ? home_->ToString() : "a worker";
  if (const auto cores = config::CoresOf(strategy.topology())) {
    return fmt::format("{} of {} ({} {})", Counted(*cores, "emulated core"), worker, kind,
                       strategy.topology());
  }
  return fmt::format("{} of {} ({})", Counted(std::max(1u, strategy.devices()), "device"), worker,
                     kind);
}

// On the home; the least busy worker that is not left out becomes it.
void HomeView::StartExecutors() {
  if (!running()) return;
  if (!home_) {
    const std::vector<const Member*> free = FreeWorkers(world_, lasting_.fitness);
    if (free.empty()) return RefreshReason();
    SetHome(free.front()->task);
  }
  const Member* member = world_.members.Find(*home_);
  if (member != nullptr && member->state == Member::State::kUp && !HasItNow(*member)) {
    StartExecutor(*member);
  }
  RefreshReason();
}

void HomeView::SetHome(const TaskId& worker) {
  home_ = worker;
  story_.record().mutable_plan()->set_home(static_cast<std::uint32_t>(worker.index));
}

void HomeView::FillStart(const TaskId&, v1::StartExecutor& start) {
  start.set_restore_from(restored_from_);
}

void HomeView::OnWorkerLost(const Member& worker) {
  const TaskId task = worker.task;
  if (home_ != task) return;
  const std::string what = fmt::format("{} (process {}) was lost with the job's variables: {}",
                                       task.ToString(), worker.info.pid(), worker.how);
  AskWhatLostHad(worker, [this, task, what, fields = FieldsOf(worker)](const Had& had) mutable {
    fields.emplace_back("closures", Ids(had.closures));
    story_.Tell("WORKER_LOST", what, &task, fields, world_.logs.Last(story_.id(), task.ToString()));
    OnHomeGone({"WORKER_LOST", what, false, {}, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE});
  });
}

bool HomeView::RefusesCheckpoint(const Status& answer) {
  if (answer.code() != StatusCode::kDataLoss || restored_from_.empty()) return false;
  story_.MarkRefused(
      {restored_from_, storage::StepOfDirectory(restored_from_).value_or(0), Message(answer)});
  job_.BeginView();
  return true;
}

bool HomeView::OnLeftOut(const TaskId&, const Status& why) {
  if (open()) {
    job_.EndView("WORKER_UNFIT", Message(why));
    return true;
  }
  home_.reset();
  home_pid_ = 0;
  story_.record().mutable_plan()->clear_home();
  return false;
}

bool HomeView::OnOtherProcess(const TaskId& worker, const v1::ExecutorEvent& event) {
  if (home_ != worker || event.kind() == v1::ExecutorEvent::KIND_EXITED) return false;
  const std::uint32_t before = std::exchange(home_pid_, event.pid());
  if (before == 0 || before == event.pid()) return false;
  OnHomeGone({"EXECUTOR_LOST",
              fmt::format("the executor of {} (process {}) is another one now: the job's variables "
                          "ended with the one before it",
                          worker.ToString(), event.pid()),
              false,
              {},
              v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE});
  return true;
}

std::string HomeView::Consequence(const std::vector<ClosureKey>&) const {
  return "the job's variables ended with it";
}

bool HomeView::OnExecutorEnd(const TaskId&, const ExecutorEnd& end) {
  // In an open view it had the variables, also when its worker has just come back without it.
  if (end.was_ready || open()) {
    OnHomeGone(end);
    return true;
  }
  home_pid_ = 0;
  return false;
}

void HomeView::RenewExecutor(const Member&, const std::string& what) {
  job_.EndView("EXECUTOR_RESTARTED", what);
}

// Ends the view, or the job with the closure that is to blame.
void HomeView::OnHomeGone(const ExecutorEnd& end) {
  // Nothing in flight: whatever comes after the last step does it.
  const bool in_flight = !end.had.empty();
  const ClosureKey blamed =
      in_flight ? end.had.front()
                : ClosureKey{v1::CLOSURE_KIND_UNSPECIFIED, story_.record().steps_done()};
  const auto why =
      kind_.BlameFor(blamed, in_flight, end.cause, end.reason == "WORKER_LOST", end.what);
  if (why) return GiveUp({blamed, *why}, home_.value_or(TaskId{}), {});
  job_.EndView(end.reason, end.what);
}

}  // namespace muster::coordinator
