#include "worker/launches.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/words.h"
#include "common/messages/status_proto.h"
#include "common/telemetry/log.h"
#include "worker/lines.h"
#include "worker/waits.h"

namespace muster::worker {
namespace {

// Between two tries to write who is there.
constexpr Millis kWriteAgain{2'000};
// For what was killed to be gone, when the worker ends.
constexpr Millis kDeathLimit{2'000};

std::string NameOf(const v1::Task& task) { return fmt::format("{}:{}", task.type(), task.index()); }

}  // namespace

bool Launches::OnCommand(StreamId stream, const v1::Command& command) {
  const Waiter waiter{.stream = stream, .command = CommandId(command.id())};
  switch (command.body_case()) {
    case v1::Command::kPrepareLaunch:
      Prepare(waiter, command.prepare_launch());
      return true;
    case v1::Command::kStartLaunch:
      Start(waiter, command.start_launch());
      return true;
    case v1::Command::kUpdateLaunch:
      Update(waiter, command.update_launch());
      return true;
    case v1::Command::kStopLaunch:
      Stop(waiter, command.stop_launch());
      return true;
    case v1::Command::kCheckJob:
      if (!command.check_job().spec().has_launch()) return false;
      Check(waiter, command.check_job().spec());
      return true;
    default:
      return false;
  }
}

void Launches::Check(Waiter waiter, const v1::JobSpec& spec) {
  io_.Look(spec.launch(), lifeline_.Guard([this, waiter](const Status& found) {
    v1::CommandResult result;
    v1::CheckReport& report = *result.mutable_check();
    if (!found.ok()) report.add_problems(Message(found));
    Answer(waiter, Ok(), std::move(result));
  }));
}

// What became of each process, for a coordinator that may have missed it.
void Launches::OnAttached() {
  for (auto next = launches_.begin(); next != launches_.end();) {
    auto& [job_id, launch] = *next++;
    if (launch.stage != Launch::Stage::kStarted) {
      GiveUp(job_id, launch);
      continue;
    }
    for (const auto& [id, process] : launch.processes) {
      // One whose pid is not known yet is there as well.
      if (process.pid != 0 || process.running) {
        Tell(v1::LaunchEvent::KIND_STARTED, job_id, launch, process);
      }
      if (process.end) Tell(v1::LaunchEvent::KIND_EXITED, job_id, launch, process);
    }
  }
}

// Who wanted it has begun another by now, perhaps elsewhere, and would never say that this one is
// over: not even that the job is, where it has ended meanwhile. What processes of the job have
// left here they may find again.
void Launches::GiveUp(const std::string& job_id, Launch& launch) {
  launch.stopping = true;
  launch.forget = launch.forget || !launch.began;
  launch.starting.reset();
  AnswerAll(launch.preparing, Aborted("job {}: its coordinator was lost", job_id));
  FinishStop(std::string(job_id));  // where it is forgotten, the name goes with the launch
}

// ---- Beginning

// Makes ready for a launch, in the place of an older one.
void Launches::Prepare(Waiter waiter, const v1::PrepareLaunch& request) {
  if (draining_) {
    return Answer(waiter, Unavailable("worker:{} is draining", options_.worker_index));
  }
  const std::string& job_id = request.job_id();
  const LaunchNumber number(request.launch());
  Launch& launch = launches_[job_id];
  if (number < launch.number) {
    return Answer(waiter, Aborted("job {}: launch {} is over; worker:{} is at launch {}", job_id,
                                  number, options_.worker_index, launch.number));
  }
  if (number == launch.number && !launch.stopping) {
    launch.preparing.push_back(waiter);
    if (launch.stage == Launch::Stage::kReady || launch.stage == Launch::Stage::kStarted) {
      OnPrepared(job_id, launch.number, std::vector<std::string>(launch.addresses));
    }
    return;
  }
  AnswerAll(launch.preparing, Aborted("job {}: replaced by launch {}", job_id, number));
  AnswerAll(launch.stoppers, Ok());
  (void)scheduler_.Cancel(std::exchange(launch.kill_timer, 0));
  launch.number = number;
  launch.request = request;
  launch.stage = Launch::Stage::kClearing;
  launch.addresses.clear();
  launch.workers.clear();
  launch.write_planned = false;
  launch.preparing = {waiter};
  launch.starting.reset();
  launch.stopping = launch.forget = false;
  KillAll(launch);
  BeginPreparing(job_id, launch);
}

void Launches::BeginPreparing(const std::string& job_id, Launch& launch) {
  if (AnyRuns(launch)) return;
  for (const auto& [id, process] : launch.processes) jobs_.erase(id);
  launch.processes.clear();
  launch.stage = Launch::Stage::kPreparing;
  io_.Prepare(job_id, launch.number, launch.request.spec(), launch.request.addresses());
}

bool Launches::Awaits(const std::string& job_id, LaunchNumber number) const {
  const auto found = launches_.find(job_id);
  return found != launches_.end() && found->second.number == number &&
         found->second.stage == Launch::Stage::kPreparing && !found->second.stopping;
}

void Launches::OnPrepared(const std::string& job_id, LaunchNumber number,
                          const Result<std::vector<std::string>>& addresses) {
  const auto found = launches_.find(job_id);
  if (found == launches_.end() || found->second.number != number || found->second.stopping) return;
  Launch& launch = found->second;
  if (!addresses.ok()) {
    AnswerAll(launch.preparing, addresses.status());
    return;
  }
  if (launch.stage == Launch::Stage::kPreparing) launch.stage = Launch::Stage::kReady;
  launch.addresses = *addresses;
  for (const Waiter& waiter : std::exchange(launch.preparing, {})) {
    v1::CommandResult result;
    result.mutable_launch()->mutable_addresses()->Assign(addresses->begin(), addresses->end());
    Answer(waiter, Ok(), std::move(result));
  }
}

// Starts the processes, all or none.
void Launches::Start(Waiter waiter, const v1::StartLaunch& request) {
  const std::string& job_id = request.job_id();
  const LaunchNumber number(request.launch());
  const auto found = launches_.find(job_id);
  const bool ours = found != launches_.end() && found->second.number == number;
  if (ours && found->second.stage == Launch::Stage::kStarted) return Answer(waiter, Ok());
  // No fault of the job's, as what follows is.
  if (draining_) {
    return Answer(waiter, Unavailable("worker:{} is draining", options_.worker_index));
  }
  if (!ours || found->second.stage != Launch::Stage::kReady || found->second.stopping) {
    return Answer(waiter, FailedPrecondition("job {}: launch {} is not ready on worker:{}", job_id,
                                             number, options_.worker_index));
  }
  Launch& launch = found->second;
  if (request.workers().empty()) return StartNow(launch, waiter, request);
  launch.starting = {waiter, request};
  io_.WriteWorkers(job_id, launch.number, request.workers());
}

void Launches::OnWorkersWritten(const std::string& job_id, LaunchNumber number,
                                const Status& status) {
  const auto found = launches_.find(job_id);
  if (found == launches_.end() || found->second.number != number) return;
  Launch& launch = found->second;
  if (!launch.starting.has_value()) {
    if (!status.ok()) {
      log::Warning("job {}: its processes do not hear of others until that can be written: {}",
                   job_id, Message(status));
      WriteLater(job_id, launch);
    }
    return;
  }
  const auto [waiter, request] = *std::exchange(launch.starting, std::nullopt);
  if (!status.ok()) return Answer(waiter, status);
  if (launch.stage != Launch::Stage::kReady || launch.stopping || draining_) {
    return Answer(waiter, Aborted("job {}: launch {} ends before it has begun", job_id, number));
  }
  StartNow(launch, waiter, request);
}

void Launches::Update(Waiter waiter, const v1::UpdateLaunch& request) {
  const auto found = launches_.find(request.job_id());
  const LaunchNumber number(request.launch());
  if (found != launches_.end() && found->second.number == number) {
    found->second.workers = request.workers();
    io_.WriteWorkers(request.job_id(), number, request.workers());
  }
  Answer(waiter, Ok());
}

// The coordinator tells of each change once: a disk that was full then would leave the processes
// with addresses of old.
void Launches::WriteLater(const std::string& job_id, Launch& launch) {
  if (std::exchange(launch.write_planned, true)) return;
  (void)scheduler_.RunAfter(kWriteAgain, lifeline_.Guard([this, job_id, number = launch.number] {
    const auto now = launches_.find(job_id);
    if (now == launches_.end() || now->second.number != number) return;
    now->second.write_planned = false;
    if (AnyRuns(now->second)) io_.WriteWorkers(job_id, number, now->second.workers);
  }));
}

void Launches::StartNow(Launch& launch, Waiter waiter, const v1::StartLaunch& request) {
  const std::string& job_id = request.job_id();
  launch.stage = Launch::Stage::kStarted;
  launch.began = true;
  for (const v1::LaunchProcess& wanted : request.processes()) {
    const LaunchedId id(next_process_++);
    Process& process = launch.processes[id];
    process.task = wanted.task();
    jobs_[id] = job_id;
    if (const Status started = io_.Run(id, job_id, launch.request.spec(), wanted); !started.ok()) {
      launch.processes.erase(id);
      jobs_.erase(id);
      KillAll(launch);
      return Answer(waiter, Annotate(started, NameOf(wanted.task())));
    }
  }
  log::With({{"job", job_id}})
      .Info("launch {}: {} started", launch.number, Counted(launch.processes.size(), "process"));
  Answer(waiter, Ok());
}

std::pair<std::string, Launches::Process*> Launches::Find(LaunchedId id) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return {"", nullptr};
  return {job->second, &launches_[job->second].processes[id]};
}

void Launches::OnStarted(LaunchedId id, int pid) {
  const auto [job_id, process] = Find(id);
  if (process == nullptr) return;
  process->pid = pid;
  const Launch& launch = launches_[job_id];
  if (launch.stage == Launch::Stage::kStarted) {
    Tell(v1::LaunchEvent::KIND_STARTED, job_id, launch, *process);
  }
}

// ---- Ending

bool Launches::AnyRuns(const Launch& launch) {
  return std::any_of(launch.processes.begin(), launch.processes.end(),
                     [](const auto& one) { return one.second.running; });
}

void Launches::KillAll(Launch& launch) {
  for (auto& [id, process] : launch.processes) {
    if (!process.running) continue;
    process.asked = true;
    io_.Kill(id);
  }
}

void Launches::AskAll(Launch& launch) {
  for (auto& [id, process] : launch.processes) {
    if (!process.running || std::exchange(process.asked, true)) continue;
    io_.Ask(id);
  }
}

// Asks this launch and earlier ones of the job to end; answered when nothing of them runs.
void Launches::Stop(Waiter waiter, const v1::StopLaunch& request) {
  const std::string& job_id = request.job_id();
  const auto found = launches_.find(job_id);
  if (found == launches_.end() || found->second.number > LaunchNumber(request.launch())) {
    if (found == launches_.end() && request.forget()) io_.Forget(job_id);
    return Answer(waiter, Ok());
  }
  Launch& launch = found->second;
  launch.stopping = true;
  launch.forget = launch.forget || request.forget();
  launch.stoppers.push_back(waiter);
  AnswerAll(launch.preparing, Aborted("job {}: the launch was stopped", job_id));
  AskAll(launch);
  (void)scheduler_.Cancel(launch.kill_timer);
  launch.kill_timer = scheduler_.RunAfter(
      Millis(request.grace_ms()), lifeline_.Guard([this, job_id, number = launch.number] {
        const auto now = launches_.find(job_id);
        if (now != launches_.end() && now->second.number == number) KillAll(now->second);
      }));
  FinishStop(job_id);
}

void Launches::FinishStop(const std::string& job_id) {
  const auto found = launches_.find(job_id);
  if (found == launches_.end() || !found->second.stopping || AnyRuns(found->second)) return;
  Launch& launch = found->second;
  (void)scheduler_.Cancel(std::exchange(launch.kill_timer, 0));
  io_.Release(job_id);
  AnswerAll(launch.stoppers, Ok());
  if (!launch.forget) return;
  for (const auto& [id, process] : launch.processes) jobs_.erase(id);
  launches_.erase(found);
  io_.Forget(job_id);
}

void Launches::OnExited(LaunchedId id, const LaunchedEnd& end) {
  const auto [job_id, process] = Find(id);
  if (process == nullptr) return;
  FlushLines(job_id, id);
  process->running = false;
  process->end = end;
  process->end->last_error = CutLine(end.last_error);
  Launch& launch = launches_[job_id];
  log::With({{"job", job_id}})
      .Info("launch {}: {} ended by {}", launch.number, NameOf(process->task), end.how);
  if (launch.stage == Launch::Stage::kClearing) {
    // The one that was to follow may have been stopped meanwhile.
    if (launch.stopping) {
      FinishStop(job_id);
    } else {
      BeginPreparing(job_id, launch);
    }
  } else {
    Tell(v1::LaunchEvent::KIND_EXITED, job_id, launch, *process);
    FinishStop(job_id);
  }
  FinishDrain();
}

void Launches::NoteDraining() {
  draining_ = true;
  for (auto& [job_id, launch] : launches_) AskAll(launch);
}

void Launches::Drain(Millis limit, std::function<void()> done) {
  NoteDraining();
  drained_ = std::move(done);
  (void)scheduler_.RunAfter(limit, lifeline_.Guard([this] {
    for (auto& [job_id, launch] : launches_) KillAll(launch);
    // One that cannot die now (its disk does not answer) keeps no executor and no goodbye waiting.
    (void)scheduler_.RunAfter(kDeathLimit, lifeline_.Guard([this] {
      if (!drained_) return;
      log::Warning(
          "launched processes have not ended {} s after they were killed: this worker "
          "ends without them",
          kDeathLimit.count() / 1'000);
      std::exchange(drained_, nullptr)();
    }));
  }));
  FinishDrain();
}

void Launches::FinishDrain() {
  if (!drained_) return;
  for (const auto& [job_id, launch] : launches_) {
    if (AnyRuns(launch)) return;
  }
  std::exchange(drained_, nullptr)();
}

// ---- What they write

void Launches::OnLine(LaunchedId id, std::int64_t time_us, const std::string& line) {
  const auto [job_id, process] = Find(id);
  if (process == nullptr) return;
  std::string text = CutLine(line);
  process->last_lines.push_back(text);
  if (process->last_lines.size() > kLastLines) process->last_lines.pop_front();
  if (process->lines.lines_size() >= kMostLinesWaiting) {
    ++process->dropped_lines;
    return;
  }
  v1::LogLine& entry = *process->lines.add_lines();
  entry.set_time_us(time_us);
  entry.set_text(std::move(text));
  if (std::exchange(process->flush_planned, true)) return;
  (void)scheduler_.RunAfter(
      options_.log_delay, lifeline_.Guard([this, job_id = job_id, id] { FlushLines(job_id, id); }));
}

void Launches::FlushLines(const std::string& job_id, LaunchedId id) {
  const auto [now, process] = Find(id);
  if (process == nullptr || now != job_id) return;
  process->flush_planned = false;
  if (process->lines.lines_size() == 0) return;
  if (const std::uint64_t dropped = std::exchange(process->dropped_lines, 0); dropped > 0) {
    v1::LogLine& note = *process->lines.add_lines();
    note.set_time_us(process->lines.lines(process->lines.lines_size() - 2).time_us());
    note.set_text(fmt::format("({} dropped: too many at once)", Counted(dropped, "line")));
  }
  v1::DaemonMessage message;
  message.mutable_log()->Swap(&process->lines);
  message.mutable_log()->set_job_id(job_id);
  *message.mutable_log()->mutable_task() = process->task;
  io_.ToCoordinator(std::move(message));
}

// ---- To the coordinator

void Launches::FillHeartbeat(v1::Heartbeat& heartbeat) const {
  for (const auto& [job_id, launch] : launches_) {
    std::uint64_t bytes = 0;
    for (const auto& [id, process] : launch.processes) {
      if (!process.running) continue;
      bytes += io_.MemoryOf(id);
      const std::optional<process::Wait> wait = io_.WaitOf(id);
      if (!wait) continue;
      v1::CollectiveWait& entry = *heartbeat.add_waits();
      entry = ToProto(*wait);
      entry.set_job_id(job_id);
      *entry.mutable_task() = process.task;
    }
    if (bytes == 0) continue;
    v1::JobBytes& held = *heartbeat.add_job_bytes();
    held.set_job_id(job_id);
    held.set_bytes(bytes);
  }
}

void Launches::NameFetching(v1::Heartbeat& heartbeat) const {
  for (const auto& [job_id, launch] : launches_) {
    if (launch.stage != Launch::Stage::kPreparing) continue;
    for (const Waiter& waiter : launch.preparing) heartbeat.add_fetching(waiter.command.value());
  }
}

void Launches::Tell(v1::LaunchEvent::Kind kind, const std::string& job_id, const Launch& launch,
                    const Process& process) {
  v1::DaemonMessage message;
  v1::LaunchEvent& event = *message.mutable_launched();
  event.set_job_id(job_id);
  event.set_launch(launch.number.value());
  *event.mutable_task() = process.task;
  event.set_pid(static_cast<std::uint32_t>(process.pid));
  event.set_kind(kind);
  event.set_asked(process.asked);
  if (kind == v1::LaunchEvent::KIND_EXITED) {
    event.set_how(process.end->how);
    event.set_exit_code(process.end->code);
    event.set_signal(process.end->signal);
    event.set_ended_us(process.end->time_us);
    event.set_last_error(process.end->last_error);
    event.set_final(process.end->final);
    event.set_too_late(process.end->too_late);
    event.mutable_last_lines()->Assign(process.last_lines.begin(), process.last_lines.end());
  }
  io_.ToCoordinator(std::move(message));
}

void Launches::AnswerAll(std::vector<Waiter>& waiters, const Status& status) {
  for (const Waiter& waiter : std::exchange(waiters, {})) Answer(waiter, status);
}

}  // namespace muster::worker
