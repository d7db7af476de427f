// What all kinds of jobs share: what a job waits for, how it begins, how it ends.
#include "coordinator/job.h"

#include <algorithm>

#include <unistd.h>

#include "common/base/words.h"
#include "common/messages/job_state.h"
#include "coordinator/elastic_job.h"
#include "coordinator/launch_job.h"
#include "coordinator/model_job.h"
#include "coordinator/program_job.h"

namespace muster::coordinator {

v1::Command DropCommand(const std::string& job_id, Epoch epoch, ViewId view) {
  v1::Command command;
  v1::DropJob& drop = *command.mutable_drop_job();
  drop.set_job_id(job_id);
  drop.set_epoch(epoch.value());
  drop.set_view(view.value());
  return command;
}

std::unique_ptr<Job> Job::Make(World& world, StoredJob stored) {
  if (stored.record.job().spec().launch().elastic()) {
    return std::make_unique<ElasticJob>(world, std::move(stored));
  }
  if (stored.record.job().spec().has_launch()) {
    return std::make_unique<LaunchJob>(world, std::move(stored));
  }
  if (stored.record.job().spec().has_program()) {
    return std::make_unique<ProgramJob>(world, std::move(stored));
  }
  return std::make_unique<ModelJob>(world, std::move(stored));
}

Job::Job(World& world, StoredJob stored) : world_(world), story_(world, std::move(stored)) {
  if (HasEnded(record().job().state())) phase_ = Phase::kEnded;
}

Job::~Job() { (void)world_.scheduler.Cancel(stop_timer_); }

void Job::Admit() {
  if (admitted_ || world_.draining) return;
  admitted_ = WantsSlot();
  Advance();
}

void Job::AwaitTurn() {
  Advance();
  if (!WantsSlot() || world_.scheduler.Now() < not_before_) return;
  story_.SetState(WaitingState(), "WAITING_FOR_SLOT",
                  "other jobs run; this one begins when one has ended");
}

bool Job::WantsSlot() const {
  return phase_ == Phase::kWaiting && !admitted_ && MissingTasks().empty();
}

// Tells what the coordinator's end has cost this job, and lets its kind go on. One that was to stop
// and had nobody left to save it is over.
void Job::NoteRestart(const Predecessor& before) {
  if (ended()) return;
  if (story_.record().stop_requested() && !MaySaveYet()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               "stopped; the coordinator was restarted before it had ended");
  }
  away_since_ = before.alive;
  Story::Fields fields{{"epoch", std::to_string(world_.epoch.value())},
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
  story_.Tell("COORDINATOR_RESTARTED",
              fmt::format("{} was started again as process {} (epoch {}{}); {}", ended, ::getpid(),
                          world_.epoch.value(), away, AfterRestart()),
              nullptr, fields);
  GoOnAfterRestart();
}

void Job::NoteStall(Millis slept) {
  if (ended() || record().plan().view() == 0) return;
  story_.Tell(
      "COORDINATOR_STALLED",
      fmt::format("the coordinator itself slept {:.1f} s (stopped, or its machine or its disk "
                  "stood still); it heard nobody meanwhile and gives nobody up for that",
                  static_cast<double>(slept.count()) / 1000),
      nullptr, {{"slept_ms", std::to_string(slept.count())}});
}

void Job::NoteSlowJournal(Millis waited, std::size_t rows) {
  if (ended() || record().plan().view() == 0) return;
  story_.Tell("JOURNAL_SLOW",
              fmt::format("the disk of the coordinator's database has not answered for {} s ({} "
                          "wait): what runs goes on; what needs a row waits for it",
                          waited.count() / 1000, Counted(rows, "row")),
              nullptr,
              {{"waited_ms", std::to_string(waited.count())}, {"rows", std::to_string(rows)}});
}

// As if it had just been submitted, but for what it has saved and, unless `anew`, what is known of
// its progress.
void Job::Resume(bool anew) {
  Release();
  ++generation_;
  phase_ = Phase::kWaiting;
  admitted_ = false;
  not_before_ = TimePoint();
  waiting_since_.reset();
  wait_told_ = false;
  story_.RecallEvents();
  story_.ForgetEnd();
  v1::JobRecord& row = story_.record();
  row.set_stop_requested(false);
  row.set_stop_until_ms(0);
  v1::Job& job = *row.mutable_job();
  job.set_ended_ms(0);
  job.clear_error();
  if (anew) {
    row.set_begin_anew(true);
    row.set_checked(false);
    job.clear_progress();
    job.set_started_ms(0);
    job.set_closures_rerun(0);
  }
  story_.Tell(anew ? "JOB_RESTARTED" : "JOB_RESUMED", Forget(anew));
  story_.SetState(v1::JOB_STATE_PENDING, anew ? "JOB_RESTARTED" : "JOB_RESUMED",
                  "waiting for its turn");
}

// --- Waiting.

v1::JobState Job::WaitingState() const {
  return record().plan().view() > 0 ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_PENDING;
}

// The one place that moves a waiting job on. Called after everything that may have changed that.
// Whether it has its turn is not known here: the coordinator tells right after (Admit(),
// AwaitTurn()).
void Job::Advance() {
  if (phase_ != Phase::kWaiting || world_.scheduler.Now() < not_before_) return;
  const std::string missing = MissingTasks();
  if (!missing.empty()) {
    WatchTheWait();
    return story_.SetState(WaitingState(), "WAITING_FOR_TASKS", "waiting for " + missing);
  }
  waiting_since_.reset();
  wait_told_ = false;
  if (!admitted_) return;
  if (!record().checked()) {
    BeginCheck();
  } else {
    phase_ = Phase::kBegun;
    Begin();
  }
}

std::string Job::MissingTasks() const {
  std::vector<std::string> missing = Missing();
  if (world_.members.Up("worker").empty()) {
    std::vector<std::string> names;
    for (const v1::TaskState& state : world_.members.Describe()) {
      if (state.task().type() != "worker") continue;
      const TaskId task = FromProto(state.task());
      const bool unseen = world_.members.Known(task) == nullptr && !world_.members.IsOut(task);
      names.push_back(fmt::format("{} ({})", task.ToString(),
                                  unseen ? world_.members.Unseen() : state.state()));
    }
    if (names.empty()) names.emplace_back("a worker");
    missing.push_back((names.size() > 1 ? "one of " : "") + Joined(names));
  }
  return Joined(missing);
}

// Once, after ps_wait: the event that names who never came; then with fewer servers if allowed.
void Job::WatchTheWait() {
  if (waiting_since_) return;
  waiting_since_ = world_.scheduler.Now();
  const auto look = [this, here = lifeline_.Watch(), since = *waiting_since_] {
    if (!here() || phase_ != Phase::kWaiting || waiting_since_ != since || wait_told_) return;
    wait_told_ = true;
    const std::string missing = MissingTasks();
    if (missing.empty()) return Advance();
    story_.Tell("TASKS_MISSING",
                fmt::format("after {} s still waiting for {}; the job is held until they come",
                            world_.options.ps_wait.count() / 1000, missing),
                nullptr, {{"missing", missing}});
    if (const std::string with = MakeDo(); !with.empty()) {
      waiting_since_.reset();
      story_.Tell("PS_REPLACED", with);
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
  story_.SetState(v1::JOB_STATE_STARTING, "CHECKING", Checking());
  world_.checker.Check(record().job().spec(),
                       Guard([this](const Result<CheckOutcome>& outcome) { OnChecked(outcome); }));
}

// What the check has found out goes into the row; then it may begin.
void Job::OnChecked(const Result<CheckOutcome>& outcome) {
  if (!outcome.ok()) {
    const Status& status = outcome.status();
    if (std::exchange(check_trouble_, status.code()) != status.code()) {
      story_.Tell("CHECK_INTERRUPTED",
                  "the check is tried again every second until it succeeds: " + Message(status),
                  nullptr, {{"code", std::string(CodeName(status.code()))}});
    }
    return RetryAfter(Millis(1'000), "CHECK_INTERRUPTED", Message(status));
  }
  check_trouble_ = StatusCode::kOk;
  if (!outcome->problems.empty()) {
    std::string text;
    for (const std::string& problem : outcome->problems) {
      text += (text.empty() ? "" : "\n") + problem;
    }
    return Refuse(InvalidArgument("{}", text));
  }
  if (const Status taken = TakeCheck(*outcome); !taken.ok()) return Refuse(taken);
  story_.record().set_checked(true);
  phase_ = Phase::kWaiting;
  Advance();
}

void Job::RetryAfter(Millis delay, const std::string& reason, const std::string& message) {
  Drop();
  phase_ = Phase::kWaiting;
  not_before_ = world_.scheduler.Now() + delay;
  story_.SetState(record().job().state(), reason, message);
  // Who was asked to end, and had something of what is void, may leave.
  if (world_.on_settled) world_.on_settled();
  (void)world_.scheduler.RunAfter(delay, Guard([this] { Advance(); }));
}

// --- What happens to its tasks.

void Job::OnUp(const Member& member, const Arrival& arrival) {
  if (ended()) return;
  const TaskId task = member.task;
  const bool concerned = task != kEvaluator || record().job().spec().evaluation().evaluator();
  if (arrival.gap && record().plan().view() > 0 && concerned) {
    const double gap = static_cast<double>(arrival.gap->count()) / 1000;
    story_.Tell(
        task.type == "ps"    ? "PS_BACK"
        : task == kEvaluator ? "EVALUATOR_BACK"
                             : "WORKER_BACK",
        fmt::format("{} is back as process {} after {:.1f} s{}", task.ToString(), member.info.pid(),
                    gap, arrival.same_process ? "; it is the same process, with its memory" : ""),
        &task,
        {{"pid", std::to_string(member.info.pid())},
         {"session", std::to_string(member.session.value())},
         {"same_process", arrival.same_process ? "true" : "false"},
         {"gap_ms", std::to_string(arrival.gap->count())}});
  }
  OnArrival(member, arrival);
  Advance();
}

void Job::OnDraining(const Member& member) {
  const bool concerned =
      member.task != kEvaluator || record().job().spec().evaluation().evaluator();
  if (ended() || record().plan().view() == 0 || !concerned) return;
  const TaskId task = member.task;
  const v1::TakenOut* const out = world_.members.Out(task);
  const std::string why = out == nullptr
                              ? "was asked to end"
                              : fmt::format("was taken out of work by {}", WhoTook(*out));
  story_.Tell("TASK_DRAINING", fmt::format("{} {} and is draining", task.ToString(), why), &task);
  OnTaskDraining(task);
}

void Job::OnOut(const TaskId& task) {
  if (ended()) return;
  OnTaskOut(task);
  Advance();
}

// --- The end.

void Job::Fail(const Status& status) { End(v1::JOB_STATE_FAILED, status, Message(status)); }

void Job::Refuse(const Status& status) {
  const bool has_run = record().job().started_ms() > 0;
  End(v1::JOB_STATE_FAILED, status, Message(status), has_run ? "" : "REFUSED");
}

void Job::Drop() {
  ++generation_;
  Leave();
}

void Job::WaitAgain() {
  Drop();
  phase_ = Phase::kWaiting;
}

// Tells and writes it. Tasks, driver and slot are let go when it is written: whoever takes their
// place must not be found by a coordinator that knows nothing of the end.
void Job::End(v1::JobState state, const Status& error, const std::string& message,
              const std::string& why) {
  if (ended()) return;
  Drop();
  phase_ = Phase::kEnded;
  (void)world_.scheduler.Cancel(stop_timer_);
  v1::Job& job = *story_.record().mutable_job();
  job.set_ended_ms(story_.WallMs());
  Story::Fields fields = CloseProgress();
  if (!error.ok()) {
    job.mutable_error()->set_code(static_cast<int>(error.code()));
    job.mutable_error()->set_message(Message(error));
  }
  v1::Job before;
  before.set_state(job.state());
  before.set_reason(job.reason());
  before.set_message(job.message());
  const std::string reason = StateName(state);
  fields.emplace_back("code", std::string(CodeName(error.code())));
  story_.Tell("JOB_" + reason, message, nullptr, fields);
  releasing_ = true;
  story_.SetState(state, why.empty() ? reason : why, message,
                  [this, here = lifeline_.Watch()](const Status&) {
                    if (here()) Release();
                  });
  story_.NoteEnd(before);
  story_.parked().Recheck();
}

void Job::Release() {
  if (!std::exchange(releasing_, false)) return;
  admitted_ = false;
  LetGo();
  story_.DropEvents();
  if (world_.on_slots) world_.on_slots();
  if (world_.on_settled) world_.on_settled();
}

void Job::GiveUpSlot() {
  admitted_ = false;
  if (world_.on_slots) world_.on_slots();
}

void Job::Stop(Millis grace) {
  if (ended()) return;
  if (!record().stop_requested()) {
    story_.record().set_stop_requested(true);
    story_.Tell("STOP_REQUESTED", "asked to stop");
  }
  story_.Persist();
  BeginStop(grace);
}

void Job::EndAfter(Millis grace, const std::string& message) {
  (void)world_.scheduler.Cancel(stop_timer_);
  stop_timer_ = world_.scheduler.RunAfter(grace, Guard([this, message] {
                                            End(v1::JOB_STATE_CANCELLED,
                                                Cancelled("stopped as asked"), message);
                                          }));
}

// --- What people see.

namespace {

// Without log lines of the oldest events, as far as it must be to fit an answer.
void FitAnswer(v1::Job& job) {
  std::size_t bytes = job.ByteSizeLong();
  for (v1::Event& event : *job.mutable_events()) {
    if (bytes <= kMostAnswerBytes) return;
    if (event.log_lines().empty()) continue;
    bytes -= event.ByteSizeLong();
    event.clear_log_lines();
    event.add_log_lines("(left out: there is more to tell of this job than fits one answer)");
    bytes += event.ByteSizeLong();
  }
}

}  // namespace

v1::Job Job::Describe() const {
  v1::Job job = story_.Shown();
  for (v1::TaskState& state : world_.members.Describe()) {
    if (state.task().type() == "worker") {
      const TaskId worker = FromProto(state.task());
      state.set_closures_done(0);
      DescribeWorker(worker, state);
    }
    const auto keep_own = [this](auto& all) {
      all.erase(std::remove_if(all.begin(), all.end(),
                               [this](const auto& one) { return one.job_id() != id(); }),
                all.end());
    };
    keep_own(*state.mutable_job_bytes());
    keep_own(*state.mutable_waits());
    *job.add_tasks() = std::move(state);
  }
  for (const v1::Event& event : story_.events()) *job.add_events() = event;
  for (const v1::CheckpointInfo& info : story_.checkpoints()) *job.add_checkpoints() = info;
  FitAnswer(job);
  return job;
}

void Job::Describe(Then<v1::Job> then) const {
  story_.LoadEvents([this, here = lifeline_.Watch(),
                     then = std::move(then)](const Result<std::vector<v1::Event>>& events) {
    if (!events.ok()) return then(events.status());
    if (!here()) return then(NotFound("the job was forgotten meanwhile"));
    v1::Job job = Describe();
    job.mutable_events()->Assign(events->begin(), events->end());
    FitAnswer(job);
    then(std::move(job));
  });
}

v1::Job Job::Summary() const {
  v1::Job job = story_.Shown();
  job.clear_spec();
  job.clear_variables();
  if (job.has_launch()) job.mutable_launch()->clear_tasks();
  return job;
}

void Job::Watch(std::uint64_t version, Millis limit, Then<v1::Job> then) {
  story_.parked().Add(limit, [this, version, then = std::move(then)](bool last) {
    if (!last && record().job().version() <= version) return false;
    Describe(then);
    return true;
  });
}

}  // namespace muster::coordinator
