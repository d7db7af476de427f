// States and views.
#include "coordinator/job.h"

#include <algorithm>

#include <unistd.h>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "coordinator/plan.h"

namespace muster::coordinator {
namespace {

bool IsEnd(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

// What keeps a task from reading a checkpoint that is good: its host's disk or mount.
bool CannotRead(const Status& status) {
  return status.code() == StatusCode::kUnknown || status.code() == StatusCode::kNotFound ||
         status.code() == StatusCode::kPermissionDenied;
}

}  // namespace

Job::Job(World& world, StoredJob stored)
    : world_(world),
      record_(std::move(stored.record)),
      events_(std::make_move_iterator(stored.events.begin()),
              std::make_move_iterator(stored.events.end())),
      checkpoints_(std::move(stored.checkpoints)),
      parked_(world.scheduler),
      self_(std::make_shared<Job*>(this)) {
  // An ended one has none here, and tells no more.
  if (!events_.empty()) last_event_ = events_.back().sequence();
  if (IsEnd(record_.job().state())) phase_ = Phase::kEnded;
  for (const v1::CheckpointInfo& info : checkpoints_) {
    if (!info.refused().empty()) refused_.insert(info.directory());
  }
  // Twice a second the row learns how many steps are done; the mark knows each of them.
  const std::uint64_t view = record_.plan().view();
  if (const auto steps = world_.marks.Get(record_.number(), view); steps && view > 0) {
    record_.set_steps_done(std::max(record_.steps_done(), *steps));
  }
  // Changes after the last row that was written may have been seen by readers: go past them.
  record_.mutable_job()->set_version(record_.job().version() + 10'000);
}

Job::~Job() { (void)world_.scheduler.Cancel(stop_timer_); }

void Job::Admit() {
  if (admitted_ || world_.draining) return;
  admitted_ = WantsSlot();
  Advance();
}

bool Job::WantsSlot() const { return !ended() && !admitted_ && MissingTasks().empty(); }

void Job::NoteRestart(const Predecessor& before) {
  if (ended()) return;
  if (record_.stop_requested()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               "stopped; the coordinator was restarted before the driver had ended");
  }
  Fields fields{{"epoch", std::to_string(world_.epoch.value())},
                {"pid", std::to_string(::getpid())}};
  std::string ended = "the coordinator";
  if (before.pid != 0) {
    fields.emplace_back("lost_pid", std::to_string(before.pid));
    ended += fmt::format(" (process {})", before.pid);
  }
  if (!before.how.empty()) {
    fields.emplace_back("how", before.how);
    ended += fmt::format(" ended by {} and", before.how);
  }
  std::string away;
  if (before.alive) {
    const Millis gap = std::max(
        Millis(0), std::chrono::duration_cast<Millis>(world_.scheduler.WallNow() - *before.alive));
    fields.emplace_back("gap_ms", std::to_string(gap.count()));
    away = fmt::format(", away for {:.1f} s", static_cast<double>(gap.count()) / 1000);
  }
  Tell("COORDINATOR_RESTARTED",
       fmt::format("{} was started again as process {} (epoch {}{}); the job goes on by itself "
                   "from its last checkpoint when its tasks are back",
                   ended, ::getpid(), world_.epoch.value(), away),
       nullptr, fields);
  if (record_.plan().view() > 0) {
    SetState(v1::JOB_STATE_RESTORING, "COORDINATOR_RESTARTED", "waiting for its tasks");
  } else {
    SetState(v1::JOB_STATE_PENDING, "COORDINATOR_RESTARTED", "waiting for its tasks");
  }
}

void Job::Resume(bool anew) {
  ++generation_;
  if (events_.empty()) {
    for (v1::Event& event : Events()) events_.push_back(std::move(event));
    if (!events_.empty()) last_event_ = events_.back().sequence();
  }
  phase_ = Phase::kWaiting;
  admitted_ = false;
  // The old one is on its way out, and its end nobody's concern.
  driver_ = Driver();
  driver_lost_at_.reset();
  unwritten_end_.reset();
  waiting_since_.reset();
  wait_told_ = false;
  driver_failures_ = 0;
  unfit_.clear();
  not_before_ = TimePoint();
  // Onto the servers that there are now, however many there were.
  replan_ = !SpecNamesPs();
  record_.set_stop_requested(false);
  save_failure_.clear();
  crashes_ = own_crashes_ = without_room_ = 0;
  v1::Job& job = *record_.mutable_job();
  job.set_ended_ms(0);
  job.clear_error();
  if (anew) {
    record_.set_begin_anew(true);
    record_.set_checked(false);
    record_.set_steps_done(0);
    job.clear_progress();
    job.clear_evaluation();
    job.set_started_ms(0);
    job.set_closures_rerun(0);
    closures_by_.clear();
    refused_.clear();
    Tell("JOB_RESTARTED", "submitted again with --restart: the job begins anew at step 0");
  } else {
    Tell("JOB_RESUMED", "submitted again: the job goes on from its newest checkpoint");
  }
  SetState(v1::JOB_STATE_PENDING, anew ? "JOB_RESTARTED" : "JOB_RESUMED", "waiting for its turn");
}

// The one place that moves a waiting job on. Called after everything that may have changed that.
void Job::Advance() {
  if (phase_ != Phase::kWaiting) return;
  const v1::JobState state =
      record_.plan().view() > 0 ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_PENDING;
  if (world_.scheduler.Now() < not_before_) return;
  const std::string missing = MissingTasks();
  if (!missing.empty()) {
    WatchTheWait();
    return SetState(state, "WAITING_FOR_TASKS", "waiting for " + missing);
  }
  waiting_since_.reset();
  wait_told_ = false;
  if (!admitted_) {
    return SetState(state, "WAITING_FOR_SLOT",
                    "other jobs run; this one begins when one has ended");
  }
  if (!record_.checked()) {
    BeginCheck();
  } else {
    BeginView();
  }
}

void Job::RetryAfter(Millis delay, const std::string& reason, const std::string& message) {
  ++generation_;
  phase_ = Phase::kWaiting;
  not_before_ = world_.scheduler.Now() + delay;
  SetState(record_.job().state(), reason, message);
  (void)world_.scheduler.RunAfter(delay, Guard([this] { Advance(); }));
}

std::set<int> Job::RequiredPs() const {
  std::set<int> required;
  if (HasHome()) return required;
  for (const TaskId& task : world_.members.options().tasks) {
    if (task.type == "ps") required.insert(task.index);
  }
  if (!required.empty()) return required;
  if (!replan_) {
    for (const v1::PsAddress& ps : record_.plan().ps())
      required.insert(static_cast<int>(ps.index()));
  }
  if (!required.empty()) return required;
  if (!replan_) {
    for (const TaskId& task : world_.members.options().expected) {
      if (task.type == "ps") required.insert(task.index);
    }
  }
  if (!required.empty()) return required;
  for (const Member* ps : world_.members.Up("ps")) required.insert(ps->task.index);
  return required;
}

bool Job::SpecNamesPs() const {
  const std::vector<TaskId>& tasks = world_.members.options().tasks;
  return std::any_of(tasks.begin(), tasks.end(),
                     [](const TaskId& task) { return task.type == "ps"; });
}

// "ps:1 (lost: its connection was reset) and a worker"; empty: nobody is missing.
std::string Job::MissingTasks() const {
  std::vector<std::string> missing;
  const std::set<int> required = RequiredPs();
  if (required.empty() && !HasHome()) missing.push_back("a parameter server");
  for (const int index : required) {
    const TaskId task{"ps", index};
    const Member* member = world_.members.Known(task);
    if (member != nullptr && member->state == Member::State::kUp) continue;
    std::string how = "has never registered";
    if (member != nullptr) how = member->alive() ? "is draining" : "lost: " + member->how;
    missing.push_back(fmt::format("{} ({})", task.ToString(), how));
  }
  if (world_.members.Up("worker").empty()) {
    std::string names;
    for (const v1::TaskState& state : world_.members.Describe()) {
      if (state.task().type() != "worker") continue;
      names += fmt::format("{}{} ({})", names.empty() ? "" : " or ",
                           FromProto(state.task()).ToString(), state.state());
    }
    missing.push_back(names.empty() ? "a worker" : names);
  }
  std::string text;
  for (const std::string& one : missing) text += (text.empty() ? "" : ", ") + one;
  return text;
}

// Once, after ps_wait: the event that names who never came; then with fewer servers if allowed.
void Job::WatchTheWait() {
  if (waiting_since_) return;
  waiting_since_ = world_.scheduler.Now();
  const auto look = [this, weak = std::weak_ptr<Job*>(self_), since = *waiting_since_] {
    if (weak.expired() || phase_ != Phase::kWaiting || waiting_since_ != since || wait_told_)
      return;
    wait_told_ = true;
    const std::string missing = MissingTasks();
    if (missing.empty()) return Advance();
    Tell("TASKS_MISSING",
         fmt::format("after {} s still waiting for {}; the job is held until they come",
                     world_.options.ps_wait.count() / 1000, missing),
         nullptr, {{"missing", missing}});
    if (!HasHome() && !SpecNamesPs() && !replan_ && !world_.members.Up("ps").empty()) {
      replan_ = true;
      waiting_since_.reset();
      Tell("PS_REPLACED", "goes on with the parameter servers that are there");
    }
    // Others need not wait with it.
    if (!MissingTasks().empty()) admitted_ = false;
    Advance();
    if (!admitted_ && world_.on_slots) world_.on_slots();
  };
  (void)world_.scheduler.RunAfter(world_.options.ps_wait, look);
}

void Job::BeginCheck() {
  phase_ = Phase::kChecking;
  ++generation_;
  SetState(v1::JOB_STATE_STARTING, "CHECKING", "a worker compiles the model and opens the data");
  world_.checker.Check(record_.job().spec(), Guard([this](Result<CheckOutcome> outcome) {
                         if (!outcome.ok()) {
                           return RetryAfter(Millis(1'000), "CHECK_INTERRUPTED",
                                             Message(outcome.status()));
                         }
                         if (!outcome->problems.empty()) {
                           std::string text;
                           for (const std::string& problem : outcome->problems) {
                             text += (text.empty() ? "" : "\n") + problem;
                           }
                           return Refuse(InvalidArgument("{}", text));
                         }
                         record_.set_checked(true);
                         record_.clear_parameters();
                         for (const v1::VariableLayout& variable : outcome->parameters) {
                           *record_.add_parameters() = variable;
                         }
                         record_.mutable_data()->clear();
                         record_.mutable_data()->insert(outcome->data.begin(), outcome->data.end());
                         record_.set_training_examples(outcome->training_examples);
                         record_.set_evaluation_examples(outcome->evaluation_examples);
                         phase_ = Phase::kWaiting;
                         Advance();
                       }));
}

void Job::BeginView() {
  phase_ = Phase::kFinding;
  ++generation_;
  executors_.clear();
  missing_ps_.clear();
  assigner_.reset();
  assigned_ = false;
  home_.reset();
  home_pid_ = 0;
  judging_ = false;
  reruns_.clear();
  dispatcher_.reset();
  const bool again = record_.plan().view() > 0;
  SetState(again ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_STARTING,
           again ? "RESTORING" : "CREATING_VARIABLES", "looking for a checkpoint");
  WatchTheFolder();
  if (record_.begin_anew()) return SetCheckpointsAside();
  FindCheckpoint();
}

void Job::CreateVariables(const Checkpoints::Found& found) {
  if (const std::string missing = MissingTasks(); !missing.empty()) {
    phase_ = Phase::kWaiting;
    return Advance();
  }
  std::vector<v1::PsAddress> servers;
  for (const int index : RequiredPs()) {
    const Member* member = world_.members.Find({"ps", index});
    v1::PsAddress& address = servers.emplace_back();
    address.set_index(static_cast<std::uint32_t>(index));
    address.set_boot_id(member->info.boot_id());
    *address.mutable_data() = member->info.data();
  }
  Result<v1::JobPlan> plan = MakePlan(record_, servers);
  if (!plan.ok()) return Fail(plan.status());
  const std::uint64_t lost_from = record_.plan().view() > 0 ? record_.steps_done() : 0;
  const bool again = record_.plan().view() > 0;
  plan->set_epoch(world_.epoch.value());
  plan->set_view(record_.plan().view() + 1);
  plan->set_start_step(found.step);
  *record_.mutable_plan() = *plan;
  record_.set_steps_done(found.step);
  world_.marks.Set(record_.number(), plan->view(), found.step);
  position_ = Position();
  position_.scheduled = found.step;
  // One of a later step belongs to parameters that are given up.
  if (record_.job().has_evaluation() && record_.job().evaluation().step() <= found.step) {
    position_.evaluated = record_.job().evaluation().step();
  }
  buffers_ = found.buffers;
  buffers_version_ = 0;
  buffers_step_.reset();
  fetching_buffers_ = false;
  buffers_of_ = TaskId();
  record_.mutable_job()->set_view(plan->view());
  *record_.mutable_job()->mutable_variables() = plan->variables();
  // The number of the view must be on disk before anybody obeys it.
  if (const Status status = Persist(); !status.ok()) {
    return RetryAfter(Millis(1'000), "JOURNAL_UNAVAILABLE", Message(status));
  }
  // Not at each try.
  const bool told = std::exchange(restored_told_, found.step) == found.step;
  if (again && !told) {
    const std::uint64_t lost = lost_from > found.step ? lost_from - found.step : 0;
    const std::string from = found.directory.empty()
                                 ? fmt::format("its initial values ({})", NoSoundCheckpoint())
                                 : fmt::format("the checkpoint of step {}", found.step);
    Tell("JOB_RESTORED",
         fmt::format("goes back to {}: {}", from,
                     lost == 0 ? "no step is lost"
                               : fmt::format("{} done since {} lost and done again",
                                             Counted(lost, "step"), Agreeing(lost, "is", "are"))),
         nullptr,
         {{"view", std::to_string(plan->view())},
          {"step", std::to_string(found.step)},
          {"steps_lost", std::to_string(lost)},
          {"ps", std::to_string(servers.size())},
          {"directory", found.directory}});
  } else if (!again && !found.directory.empty()) {
    Tell("CHECKPOINT_FOUND", fmt::format("begins from the checkpoint of step {}", found.step),
         nullptr, {{"step", std::to_string(found.step)}, {"directory", found.directory}});
  }
  if (HasHome()) return OnVariablesCreated(Ok(), found.directory);
  phase_ = Phase::kCreating;
  SetState(again ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_STARTING, "CREATING_VARIABLES",
           fmt::format("{} {} the variables", Counted(servers.size(), "parameter server"),
                       Agreeing(servers.size(), "makes", "make")));

  struct Waiting {
    std::size_t left = 0;
    Status first;
  };
  auto waiting = std::make_shared<Waiting>();
  waiting->left = servers.size();
  for (const v1::PsAddress& address : servers) {
    v1::Command command;
    v1::CreateVariables& create = *command.mutable_create_variables();
    *create.mutable_plan() = *plan;
    create.set_restore_from(found.directory);
    const TaskId task{"ps", static_cast<int>(address.index())};
    world_.commands.Send(*world_.members.Find(task), command, world_.options.restore_limit,
                         Guard([this, waiting, task, directory = found.directory](auto result) {
                           if (!result.ok() && waiting->first.ok()) {
                             waiting->first = Annotate(result.status(), task.ToString());
                           }
                           if (--waiting->left == 0) OnVariablesCreated(waiting->first, directory);
                         }));
  }
}

void Job::OnVariablesCreated(const Status& status, const std::string& restored_from) {
  if (!status.ok()) {
    if (status.code() == StatusCode::kDataLoss && !restored_from.empty()) {
      MarkRefused({restored_from, StepOfDirectory(restored_from), Message(status)});
      return BeginView();
    }
    if (!restored_from.empty() && CannotRead(status)) return WaitForCheckpoints(status);
    if (IsTransient(status.code())) {
      return RetryAfter(Millis(1'000), "CREATING_VARIABLES",
                        "could not make the variables, tries again: " + Message(status));
    }
    // They had room for the view before this one, which a request on its way may still hold.
    if (status.code() == StatusCode::kResourceExhausted && record_.plan().view() > 1 &&
        ++without_room_ < world_.options.room_limit) {
      if (without_room_ == 1) {
        Tell("SERVERS_FULL", "no room for the variables yet, tries again: " + Message(status));
      }
      return RetryAfter(Millis(5'000), "SERVERS_FULL",
                        "no room for the variables yet, tries again: " + Message(status));
    }
    return Fail(status);
  }
  without_room_ = 0;
  phase_ = Phase::kStarting;
  unreadable_told_.clear();
  restored_from_ = restored_from;
  dispatcher_ = std::make_unique<Dispatcher>(
      Dispatcher::Options{.job_id = id(),
                          .view = record_.plan().view(),
                          .epoch = world_.epoch,
                          .in_flight_per_worker = world_.options.in_flight_per_worker,
                          .queue_capacity = world_.options.queue_capacity,
                          .crash_limit = world_.options.crash_limit,
                          .kill_limit = world_.options.kill_limit,
                          .in_order = HasHome()},
      world_.scheduler, [this](const TaskId& task, const v1::ClosureAssignment& assignment) {
        SendClosure(task, assignment);
      });
  SetState(record_.job().state(), "STARTING_EXECUTORS", "workers start the job's executors");
  StartExecutors();
}

// The first executor is ready.
void Job::OpenView() {
  phase_ = Phase::kOpen;
  replan_ = false;
  restored_told_.reset();
  v1::Job& job = *record_.mutable_job();
  if (job.started_ms() == 0) job.set_started_ms(WallMs());
  Tell("JOB_RUNNING",
       fmt::format("running from step {} of {} on {} (view {})", record_.plan().start_step(),
                   record_.plan().total_steps(), WhereVariablesLive(), record_.plan().view()),
       nullptr,
       {{"view", std::to_string(record_.plan().view())},
        {"step", std::to_string(record_.plan().start_step())}});
  SetState(v1::JOB_STATE_RUNNING, "", "");
  (void)Persist();
  if (!driver_.running) StartDriver();
  parked_.Recheck();
  UpdateCut();
}

// Nothing of the open (or opening) view counts any more; the job goes back to a checkpoint.
void Job::EndView(const std::string& reason, const std::string& message) {
  if (ended()) return;
  if (record_.stop_requested()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               "stopped; " + message + ", so the steps since the last checkpoint are lost");
  }
  ++generation_;
  phase_ = Phase::kWaiting;
  dispatcher_.reset();
  executors_.clear();
  missing_ps_.clear();
  reruns_.clear();
  saving_.reset();
  cut_ = Cut::kNone;
  SetState(v1::JOB_STATE_RESTORING, reason, message);
  (void)Persist();
  parked_.Recheck();
  if (world_.on_settled) world_.on_settled();
  Advance();
}

void Job::Fail(const Status& status) { End(v1::JOB_STATE_FAILED, status, Message(status)); }

void Job::Refuse(const Status& status) {
  const bool has_run = record_.job().started_ms() > 0;
  End(v1::JOB_STATE_FAILED, status, Message(status), has_run ? "" : "REFUSED");
}

void Job::End(v1::JobState state, const Status& error, const std::string& message,
              const std::string& why) {
  if (ended()) return;
  ++generation_;
  phase_ = Phase::kEnded;
  (void)world_.scheduler.Cancel(stop_timer_);
  v1::Job& job = *record_.mutable_job();
  job.set_ended_ms(WallMs());
  // The driver reports twice a second, and may not have come to it.
  if (job.has_progress() || record_.steps_done() > 0) {
    job.mutable_progress()->clear_phase();
    if (job.progress().step() < record_.steps_done()) {
      job.mutable_progress()->set_step(record_.steps_done());
    }
    job.mutable_progress()->set_total_steps(record_.plan().total_steps());
  }
  if (!error.ok()) {
    job.mutable_error()->set_code(static_cast<int>(error.code()));
    job.mutable_error()->set_message(Message(error));
  }
  const v1::JobState before = job.state();
  const std::string reason = StateName(state);
  Tell("JOB_" + reason, message, nullptr,
       {{"step", std::to_string(record_.steps_done())},
        {"code", std::string(CodeName(error.code()))}});
  SetState(state, why.empty() ? reason : why, message);
  if (journal_failing_) unwritten_end_ = before;
  ReleaseTasks();
  world_.checkpoints.Release(CheckpointRoot(), world_.claimant(record_.job()).mark);
  dispatcher_.reset();
  executors_.clear();
  saving_.reset();
  cut_ = Cut::kNone;
  admitted_ = false;
  if (driver_.running) world_.drivers.Stop(id(), Millis(driver_.finished ? 5'000 : 1'000));
  parked_.Recheck();
  DropEvents();
  if (world_.on_slots) world_.on_slots();
  if (world_.on_settled) world_.on_settled();
}

void Job::ReleaseTasks() {
  for (const Member* worker : world_.members.Up("worker")) StopExecutor(*worker);
  for (const v1::PsAddress& address : record_.plan().ps()) {
    const Member* ps = world_.members.Find({"ps", static_cast<int>(address.index())});
    if (ps == nullptr) continue;
    v1::Command command;
    v1::DropJob& drop = *command.mutable_drop_job();
    drop.set_job_id(id());
    drop.set_epoch(world_.epoch.value());
    drop.set_view(record_.plan().view());
    world_.commands.Send(*ps, command, Millis(30'000), [](auto) {});
  }
}

void Job::Stop(Millis grace) {
  if (ended()) return;
  if (!record_.stop_requested()) {
    record_.set_stop_requested(true);
    Tell("STOP_REQUESTED", "asked to stop");
  }
  (void)Persist();
  if (phase_ != Phase::kOpen || !missing_ps_.empty()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               fmt::format("stopped while it was not training ({})", record_.job().message()));
  }
  if (cut_ == Cut::kSettled) return SettleCut();  // saved already, and nothing will be given out
  SetState(v1::JOB_STATE_STOPPING, "STOP_REQUESTED", "saving a checkpoint, then ends");
  (void)world_.scheduler.Cancel(stop_timer_);
  stop_timer_ = world_.scheduler.RunAfter(
      grace.count() > 0 ? grace : world_.options.stop_grace, Guard([this] {
        End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
            "stopped: its driver had not ended in the time it was given; the steps since the last "
            "checkpoint are lost");
      }));
}

}  // namespace muster::coordinator
