// The process that runs a program's main().
//
// Nothing watches it for silence, as a model's driver is watched: a program may compute for an hour
// between two words, and one that is stopped harms nobody but itself. Who waits for it in vain says
// `muster stop`.
#include <algorithm>

#include "common/base/words.h"
#include "coordinator/driver_messages.h"
#include "coordinator/program_job.h"
#include "coordinator/restarts.h"

namespace muster::coordinator {
namespace {

// How DriverProcesses begins what it says of a process that could not be started.
constexpr std::string_view kNoStart = "no start: ";

// Whether it could not be started and cannot be later either: for its own sake, and not because the
// host had no room for another process, or its disk some trouble.
bool NeverStarts(std::string_view how) {
  if (!how.starts_with(kNoStart)) return false;
  const std::string_view why = how.substr(kNoStart.size());
  constexpr StatusCode kForGood[] = {StatusCode::kInvalidArgument, StatusCode::kNotFound,
                                     StatusCode::kPermissionDenied,
                                     StatusCode::kFailedPrecondition};
  return std::ranges::any_of(kForGood,
                             [&](StatusCode code) { return why.starts_with(CodeName(code)); });
}

// "with exit code 3", "by signal SIGSEGV".
std::string Ended(const std::string& how) {
  return (how.starts_with("signal") ? "by " : "with ") + how;
}

}  // namespace

bool ProgramJob::MayStartDriver() const {
  return !driver_.running && !pausing_ && !succeeds_ && !world_.draining &&
         !record().stop_requested() && AnyReady();
}

// When an executor is there for it, it does not run, and nobody is missing. That it begins goes to
// the disk first: a coordinator that is started again must not take main() for one that never ran.
void ProgramJob::StartDriver() {
  if (driver_.beginning || !MayStartDriver()) return;
  if (!Missing().empty()) return WatchTheMissing();
  ++waits_;
  driver_.beginning = true;
  story_.record().set_driver_begun(true);
  story_.Persist(Guard([this](const Status& status) {
    driver_.beginning = false;
    if (status.ok() && MayStartDriver() && Missing().empty()) return RunDriver();
    story_.record().set_driver_begun(false);
    // The row without it is on its way before who waits for this goes on.
    story_.Persist();
    if (world_.on_settled) world_.on_settled();
    if (status.ok()) {
      StartDriver();  // watches who is missing now
      return RefreshReason();
    }
    (void)world_.scheduler.RunAfter(Millis(1'000), Guard([this] {
                                      StartDriver();
                                      RefreshReason();
                                    }));
  }));
}

// With a number of its own, by which all that an earlier driver still says is told apart. One that
// cannot be started has ended, and goes the way of those.
void ProgramJob::RunDriver() {
  driver_ = Driver();
  driver_.number = NextIncarnation(world_.epoch, drivers_started_);
  ChooseServers();
  ProgramLaunch launch;
  launch.program = story_.spec().program();
  v1::ProgramStart& start = launch.start;
  start.set_role(v1::PROGRAM_ROLE_DRIVER);
  start.set_job_id(id());
  start.set_job_name(record().job().name());
  *start.mutable_task() = ToProto({"chief", 0});
  start.set_epoch(world_.epoch.value());
  start.set_incarnation(driver_.number.value());
  *start.mutable_strategy() = story_.spec().strategy();
  start.set_closures_at_a_time(
      std::max<std::uint32_t>(1, story_.spec().program().closures_per_worker()));
  start.set_restarts(record().job().restarts());
  for (const auto& [task, executor] : executors_) {
    if (!executor.endpoint.tcp_address().empty()) {
      launch.cluster["worker"][task.index] = executor.endpoint.tcp_address();
    }
  }
  for (const Member* server : Servers()) {
    launch.cluster["ps"][server->task.index] = server->info.data().tcp_address();
  }
  world_.logs.NoteStart(id(), driver_task());
  if (const Status status = world_.drivers.StartProgram(launch); !status.ok()) {
    return OnDriverExit(driver_.number, false, std::string(kNoStart) + ToString(status));
  }
  driver_.running = true;
  TellMembers();
}

// For as long as this driver lives: another one in place of one that is lost would have none of its
// variables.
void ProgramJob::ChooseServers() {
  servers_.clear();
  for (const Member* server : world_.members.Up("ps")) {
    if (servers_.size() < story_.spec().program().parameter_servers())
      servers_.insert(server->task);
  }
  servers_had_ = Servers().size();
}

// Once in each wait, after ps_wait: the event that names who has not come. Servers beyond those
// that the job asks for are waited for no longer, but for one: without any there are no variables.
void ProgramJob::WatchTheMissing() {
  if (std::exchange(watched_wait_, waits_) == waits_) return;
  (void)world_.scheduler.RunAfter(
      world_.options.ps_wait, Guard([this, wait = waits_] {
        if (wait != waits_) return;
        story_.Tell("TASKS_MISSING",
                    fmt::format("after {} s main() still waits for {} before it begins",
                                world_.options.ps_wait.count() / 1000, MissingTasks()),
                    nullptr, {{"missing", MissingTasks()}});
        servers_had_ = std::min<std::size_t>(servers_had_, 1);
        StartDriver();
        RefreshReason();
      }));
}

std::vector<const Member*> ProgramJob::Servers() const {
  std::vector<const Member*> servers = world_.members.Up("ps");
  if (!servers_.empty()) {
    std::erase_if(servers,
                  [this](const Member* server) { return !servers_.contains(server->task); });
  }
  return servers;
}

// Main learns it from its own calls, which give the server time to come back: people need not wait
// for that to see whom it waits for.
void ProgramJob::OnServerLost(const Member& server) {
  TellMembers();
  const bool holds = std::ranges::any_of(
      server.heartbeat.job_bytes(),
      [this](const v1::JobBytes& one) { return one.job_id() == id() && one.bytes() > 0; });
  if (driver_.running && holds) {
    driver_.away[server.task] = server.how;
    story_.Tell("PS_LOST",
                fmt::format("{} (process {}) was lost: {}; it holds variables of the program, and "
                            "what uses them waits for it",
                            server.task.ToString(), server.info.pid(), server.how),
                &server.task,
                {{"pid", std::to_string(server.info.pid())},
                 {"session", std::to_string(server.session.value())},
                 {"how", server.how}},
                world_.logs.Last(id(), server.task.ToString()));
  }
  RefreshReason();
}

void ProgramJob::TellMembers() {
  if (!driver_.running) return;
  v1::ToProgram message;
  v1::ProgramMembers& members = *message.mutable_members();
  members.set_version(++members_version_);
  for (const auto& [task, executor] : executors_) {
    if (!executor.ready) continue;
    AddWorker(task, executor.incarnation, executor.endpoint, members);
  }
  std::vector<const Member*> servers = Servers();
  // One that was asked to end serves what it holds until it is released.
  for (const Member* leaving : world_.members.Draining()) {
    if (driver_.servers.contains(leaving->task)) servers.push_back(leaving);
  }
  std::ranges::sort(servers, {}, [](const Member* server) { return server->task; });
  driver_.servers.clear();
  for (const Member* server : servers) {
    driver_.servers.insert(server->task);
    v1::PsAddress& address = *members.add_servers();
    address.set_index(static_cast<std::uint32_t>(server->task.index));
    address.set_boot_id(server->info.boot_id());
    *address.mutable_data() = server->info.data();
  }
  world_.drivers.Send(id(), message);
}

// Before the members without it.
void ProgramJob::TellVerdict(const TaskId& task, const Executor& executor,
                             v1::ExecutorVerdict::Cause cause, const std::string& how,
                             const std::vector<std::string>& lines,
                             const v1::ExecutorEvent* event) {
  if (!driver_.running) return;
  v1::ToProgram message;
  v1::ExecutorVerdict& verdict = *message.mutable_verdict();
  verdict = VerdictOf(task, executor.incarnation, cause, how, lines);
  if (event != nullptr) SetRunning(*event, verdict);
  world_.drivers.Send(id(), message);
}

void ProgramJob::TellStop(Millis grace) {
  v1::ToProgram message;
  message.mutable_stop()->set_grace_ms(static_cast<std::uint32_t>(grace.count()));
  world_.drivers.Send(id(), message);
}

void ProgramJob::OnDriverMessage(Incarnation driver, const v1::FromProgram& message) {
  if (phase_ != Phase::kBegun) return;
  if (driver == evaluator_.number) return OnEvaluatorMessage(message);
  if (!driver_.running || driver != driver_.number) return;
  switch (message.body_case()) {
    case v1::FromProgram::kReady:
      return OnDriverReady(message.ready());
    case v1::FromProgram::kReport:
      *story_.record().mutable_job()->mutable_program() = message.report();
      return story_.Touch();
    case v1::FromProgram::kEnd:
      driver_.end = MakeStatus(static_cast<StatusCode>(message.end().status().code()),
                               message.end().status().message());
      return;
    default:
      return;
  }
}

void ProgramJob::OnDriverReady(const v1::ProgramReady& ready) {
  if (ready.status().code() != 0) {
    driver_.end =
        MakeStatus(static_cast<StatusCode>(ready.status().code()), ready.status().message());
    return;
  }
  driver_.ready = true;
  driver_.pid = world_.drivers.Pid(id());
  v1::Job& job = *story_.record().mutable_job();
  if (job.started_ms() == 0) job.set_started_ms(story_.WallMs());
  story_.Tell("JOB_RUNNING",
              fmt::format("main() runs as process {}{}, its closures on {}", driver_.pid,
                          job.restarts() > 0
                              ? fmt::format(" (begun anew {})", Counted(job.restarts(), "time"))
                              : "",
                          AnyReady() ? ReadyNames() : "workers to come"),
              nullptr,
              {{"pid", std::to_string(driver_.pid)}, {"restarts", std::to_string(job.restarts())}});
  RefreshReason();
  story_.Persist();
  StartEvaluator();
}

// The end of main() is the end of the job, unless it may begin anew.
void ProgramJob::OnDriverExit(Incarnation number, bool success, const std::string& how) {
  if (number == evaluator_.number) return OnEvaluatorExit(success, how);
  if (number != driver_.number) return;
  const Driver ended = std::exchange(driver_, Driver());
  // A server that it had not used before it heard of the end takes variables of it afterwards.
  if (ended.let_go) DropOnServers();
  if (phase_ != Phase::kBegun) return;
  // Written with what becomes of the job.
  story_.record().set_driver_begun(false);
  ForgetMoment();
  const bool no_start = how.starts_with(kNoStart);
  const std::string what = no_start
                               ? "the program could not be started on the coordinator's host: " +
                                     how.substr(kNoStart.size())
                               : "main() ended " + Ended(how);
  if (record().stop_requested()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               fmt::format("stopped as asked; {}", what));
  }
  if (world_.draining && !no_start) {
    if (MostRestarts() == 0) {
      return End(v1::JOB_STATE_CANCELLED, Cancelled("the cluster was asked to end"),
                 fmt::format("ended with the cluster; {}", what));
    }
    story_.SetState(v1::JOB_STATE_RESTORING, "CLUSTER_DRAINING",
                    fmt::format("{}; it begins anew when the coordinator is back", what));
    story_.Persist();
    if (world_.on_settled) world_.on_settled();
    return;
  }
  if (success) {
    return Succeed(fmt::format("done: main() ended {}, {}", Ended(how),
                               Counted(record().job().program().done(), "closure")));
  }
  if (no_start) return OnFailure(FailedPrecondition("{}", what), what, how, ended);
  if (ended.end && !ended.end->ok()) {
    const std::string text = fmt::format("{}: {}", what, Message(*ended.end));
    return OnFailure(MakeStatus(ended.end->code(), text), text, how, ended);
  }
  OnFailure(Internal("{}; `muster logs {} chief:0` shows what it wrote", what, id()), what, how,
            ended);
}

void ProgramJob::OnFailure(const Status& why, const std::string& what, const std::string& how,
                           const Driver& ended) {
  v1::Job& job = *story_.record().mutable_job();
  const bool again = MayBeginAnew() && !NeverStarts(how);
  const int pid = ended.pid != 0 ? ended.pid : world_.drivers.Pid(id());
  std::string then = "; it is not started again";
  if (again) {
    job.set_restarts(job.restarts() + 1);
    then = fmt::format("; it begins anew ({} of {})", job.restarts(), MostRestarts());
  }
  story_.Tell(
      "PROGRAM_ENDED", what + then, nullptr,
      {{"pid", std::to_string(pid)}, {"how", how}, {"restarts", std::to_string(job.restarts())}},
      world_.logs.Last(id(), driver_task()));
  if (!again) return Fail(why);
  pausing_ = true;
  RefreshReason();
  // The number of restarts outlives this coordinator.
  story_.Persist();
  (void)world_.scheduler.RunAfter(RestartPause(job.restarts()), Guard([this] {
                                    pausing_ = false;
                                    StartDriver();
                                    RefreshReason();
                                  }));
}

}  // namespace muster::coordinator
