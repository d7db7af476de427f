#include "worker/worker_core.h"

#include <algorithm>

#include "common/base/utf8.h"
#include "common/base/words.h"
#include "common/messages/status_proto.h"
#include "common/telemetry/log.h"

namespace muster::worker {
namespace {

constexpr std::size_t kLastLines = 20;
// WorkerIo bounds their rate; this is for what comes within one log_delay.
constexpr int kMostLinesWaiting = 4'000;
constexpr std::size_t kLongestLine = 4 * 1024;

std::string Cut(const std::string& line) {
  if (line.size() <= kLongestLine) return ToValidUtf8(line);
  return ToValidUtf8(std::string_view(line).substr(0, kLongestLine)) +
         fmt::format("... ({} bytes)", line.size());
}

// What the C++ runtime, libtorch and glibc say before they abort.
bool TellsWhy(std::string_view line) {
  for (const std::string_view sign : {"what():", "INTERNAL ASSERT", "a bug in Muster:",
                                      "Assertion `", "ERROR: AddressSanitizer"}) {
    if (line.find(sign) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

WorkerCore::WorkerCore(Options options, Scheduler& scheduler, WorkerIo& io)
    : options_(std::move(options)), scheduler_(scheduler), io_(io) {}

void WorkerCore::Start() { KeepWarm(Millis(0)); }

void WorkerCore::OnAttached() {
  bool any = false;
  for (auto& [id, job] : jobs_) {
    job.claimed = !job.process.has_value();
    any = any || !job.claimed;
  }
  if (!any) return;
  (void)scheduler_.RunAfter(options_.unclaimed_limit, lifeline_.Guard([this] { EndUnclaimed(); }));
}

void WorkerCore::EndUnclaimed() {
  for (auto& [id, job] : jobs_) {
    if (job.claimed || !job.process) continue;
    log::With({{"job", id}})
        .Info("the coordinator has not asked for this job's executor since it is back: ending it");
    StopExecutor(id);
  }
}

void WorkerCore::OnCommand(StreamId stream, const v1::Command& command) {
  const Waiter waiter{.stream = stream, .command = CommandId(command.id())};
  switch (command.body_case()) {
    case v1::Command::kStartExecutor:
      return StartExecutor(waiter, command.start_executor());
    case v1::Command::kStopExecutor: {
      const v1::StopExecutor& stop = command.stop_executor();
      const Status fence = CheckFence(stop.job_id(), Epoch(stop.epoch()), ViewId(stop.view()));
      if (fence.ok()) StopExecutor(stop.job_id());
      return Answer(waiter, fence);
    }
    case v1::Command::kCheckJob: {
      v1::ToExecutor message;
      *message.mutable_check() = command.check_job();
      return RunCheck(waiter, std::move(message), command.check_job().spec(), "checking the job");
    }
    case v1::Command::kProbeData: {
      v1::ToExecutor message;
      *message.mutable_probe() = command.probe_data();
      return RunCheck(waiter, std::move(message), command.probe_data().spec(), "opening the data");
    }
    case v1::Command::kGetValues:
      return GetValues(waiter, command.get_values());
    case v1::Command::kSetBuffers:
      return SetBuffers(waiter, command.set_buffers());
    case v1::Command::kSaveVariables:
      return SaveVariables(waiter, command.save_variables());
    default:
      Answer(waiter,
             Unimplemented("worker:{} does not know command {} (kind {})", options_.worker_index,
                           command.id(), static_cast<int>(command.body_case())));
  }
}

// ---- Executors of jobs

void WorkerCore::StartExecutor(Waiter waiter, const v1::StartExecutor& start) {
  const v1::JobPlan& plan = start.plan();
  if (draining_) {
    return Answer(waiter, Unavailable("worker:{} is draining", options_.worker_index));
  }
  Job& job = jobs_[plan.job_id()];
  const Epoch epoch(plan.epoch());
  const ViewId view(plan.view());
  if (epoch < job.epoch || view < job.view) {
    return Answer(waiter, IsOver(plan.job_id(), job, epoch, view));
  }
  const bool same = epoch == job.epoch && view == job.view;
  job.claimed = true;
  if (same && job.ready) return Answer(waiter, Ok());
  if (same && job.starting) {
    job.waiters.push_back(waiter);
    return;
  }
  if (job.process) KillProcess(*std::exchange(job.process, std::nullopt));
  AnswerAll(job, Aborted("job {}: replaced by epoch {}, view {}", plan.job_id(), epoch, view));
  FlushLines(plan.job_id());
  job.epoch = epoch;
  job.view = view;
  job.start = start;
  job.waiters = {waiter};
  job.starting = true;
  job.ready = false;
  job.running.clear();
  WithArchive(start.spec(),
              [this, id = plan.job_id(), epoch, view](const Result<std::string>& path) {
                Job& now = jobs_[id];
                if (now.epoch != epoch || now.view != view || !now.starting || now.process) return;
                if (path.ok()) return BeginJob(id, *path);
                now.starting = false;
                AnswerAll(now, Annotate(path.status(), "the job's archive"));
              });
}

void WorkerCore::BeginJob(const std::string& job_id, const std::string& archive_path) {
  Job& job = jobs_[job_id];
  const Result<ProcessId> process = TakeProcess(Use::kJob, job_id);
  if (!process.ok()) {
    job.starting = false;
    return AnswerAll(job, process.status());
  }
  job.process = *process;
  v1::ToExecutor message;
  v1::ExecutorStart& start = *message.mutable_start();
  start.mutable_start()->Swap(&job.start);
  start.set_archive_path(archive_path);
  start.set_cache_directory(options_.cache_directory);
  start.set_link(options_.link);
  start.set_host_id(options_.host_id);
  start.set_threads(options_.threads);
  start.set_worker_index(options_.worker_index);
  io_.Send(*process, message);
  const int pid = processes_[*process].pid;
  log::With({{"job", job_id}}).Info("executor {} starts view {}", pid, job.view);
  Tell(v1::ExecutorEvent::KIND_STARTED, job_id, job, pid);
}

Status WorkerCore::CheckFence(const std::string& job_id, Epoch epoch, ViewId view) const {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return Ok();
  const Job& job = found->second;
  if ((epoch == Epoch() || epoch >= job.epoch) && (view == ViewId() || view >= job.view))
    return Ok();
  return IsOver(job_id, job, epoch, view);
}

Status WorkerCore::IsOver(const std::string& job_id, const Job& job, Epoch epoch,
                          ViewId view) const {
  return Aborted("job {}: epoch {}, view {} is over; worker:{} is at epoch {}, view {}", job_id,
                 epoch, view, options_.worker_index, job.epoch, job.view);
}

void WorkerCore::StopExecutor(const std::string& job_id) {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  if (job.process) KillProcess(*std::exchange(job.process, std::nullopt));
  job.starting = job.ready = false;
  job.running.clear();
  AnswerAll(job, Aborted("job {}: its executor was stopped", job_id));
  FlushLines(job_id);
  if (draining_) FinishDrain();
}

void WorkerCore::OnReady(ProcessId process, const v1::ExecutorReady& ready) {
  const std::string job_id = processes_[process].job_id;
  Job& job = jobs_[job_id];
  if (job.process != process || !job.starting) return;
  job.starting = false;
  const Status status = FromProto(ready.status());
  if (status.ok()) {
    job.ready = true;
    log::With({{"job", job_id}})
        .Info("executor ready: libtorch {}, {}", ready.torch_version(), ready.blas());
    Tell(v1::ExecutorEvent::KIND_READY, job_id, job, processes_[process].pid);
  } else {
    log::With({{"job", job_id}}).Warning("executor cannot start: {}", Message(status));
    KillProcess(process);
    job.process.reset();
  }
  AnswerAll(job, status);
}

void WorkerCore::OnRun(const v1::ClosureAssignment& assignment) {
  const auto found = jobs_.find(assignment.job_id());
  if (draining_) {
    return Refuse(assignment, Unavailable("worker:{} is draining", options_.worker_index));
  }
  if (found != jobs_.end() && ViewId(assignment.view()) < found->second.view) {
    return Refuse(assignment, Aborted("job {}: view {} is over, view {} runs", assignment.job_id(),
                                      assignment.view(), found->second.view));
  }
  if (found == jobs_.end() || ViewId(assignment.view()) != found->second.view ||
      !found->second.ready) {
    return Refuse(assignment,
                  Unavailable("worker:{} has no executor of job {} for view {}",
                              options_.worker_index, assignment.job_id(), assignment.view()));
  }
  Job& job = found->second;
  job.claimed = true;
  if (job.running.empty()) job.looks = job.idle_looks = 0;
  job.running[{assignment.closure().kind(), ClosureId(assignment.closure().id())}] = assignment;
  Watch();
  v1::ToExecutor message;
  *message.mutable_run() = assignment;
  io_.Send(*job.process, message);
}

void WorkerCore::OnClosure(ProcessId process, v1::ClosureResult result) {
  Job& job = jobs_[processes_[process].job_id];
  if (job.process != process || ViewId(result.view()) != job.view) return;
  const auto running =
      job.running.find({result.closure().kind(), ClosureId(result.closure().id())});
  if (running != job.running.end() && running->second.attempt() == result.attempt()) {
    job.running.erase(running);
  }
  job.looks = job.idle_looks = 0;
  if (result.status().code() == 0) ++closures_done_;
  v1::DaemonMessage message;
  *message.mutable_closure() = std::move(result);
  io_.ToCoordinator(std::move(message));
  if (draining_) FinishDrain();
}

void WorkerCore::Refuse(const v1::ClosureAssignment& assignment, const Status& status) {
  v1::DaemonMessage message;
  v1::ClosureResult& result = *message.mutable_closure();
  result.set_job_id(assignment.job_id());
  result.set_view(assignment.view());
  *result.mutable_closure() = assignment.closure();
  result.set_attempt(assignment.attempt());
  SetStatus(status, *result.mutable_status());
  io_.ToCoordinator(std::move(message));
}

// ---- Checks and probes

void WorkerCore::RunCheck(Waiter waiter, v1::ToExecutor message, const v1::JobSpec& spec,
                          std::string what) {
  WithArchive(spec, [this, waiter, message = std::move(message),
                     what = std::move(what)](const Result<std::string>& path) {
    if (!path.ok()) return Answer(waiter, Annotate(path.status(), "the job's archive"));
    v1::ToExecutor complete = message;
    complete.set_archive_path(*path);
    complete.set_cache_directory(options_.cache_directory);
    BeginCheck(waiter, std::move(complete), what);
  });
}

void WorkerCore::BeginCheck(Waiter waiter, v1::ToExecutor message, std::string what) {
  const Result<ProcessId> process = TakeProcess(Use::kCheck, "");
  if (!process.ok()) return Answer(waiter, process.status());
  Check& check = checks_[*process];
  check.waiter = waiter;
  check.what = std::move(what);
  check.deadline = scheduler_.RunAfter(options_.check_limit, lifeline_.Guard([this, id = *process] {
    if (!checks_.contains(id)) return;
    EndCheck(id,
             DeadlineExceeded("{} has not ended within {} s", checks_[id].what,
                              options_.check_limit.count() / 1'000),
             {}, false);
  }));
  io_.Send(*process, message);
}

void WorkerCore::EndCheck(ProcessId process, const Status& status, v1::CommandResult result,
                          bool keep) {
  const auto found = checks_.find(process);
  if (found == checks_.end()) return;
  const Check check = std::move(found->second);
  checks_.erase(found);
  (void)scheduler_.Cancel(check.deadline);
  if (keep && options_.warm && !spare_ && !draining_) {
    processes_[process].use = Use::kSpare;
    spare_ = process;
  } else {
    KillProcess(process);
  }
  Answer(check.waiter, status, std::move(result));
}

// ---- What executors say

void WorkerCore::OnMessage(ProcessId process, const v1::FromExecutor& message) {
  if (!processes_.contains(process)) return;  // killed
  switch (message.body_case()) {
    case v1::FromExecutor::kReady:
      return OnReady(process, message.ready());
    case v1::FromExecutor::kClosure:
      return OnClosure(process, message.closure());
    case v1::FromExecutor::kCheck: {
      v1::CommandResult result;
      *result.mutable_check() = message.check().report();
      return EndCheck(process, FromProto(message.check().status()), std::move(result), true);
    }
    case v1::FromExecutor::kProbe: {
      v1::CommandResult result;
      *result.mutable_probe() = message.probe().report();
      return EndCheck(process, FromProto(message.probe().status()), std::move(result), true);
    }
    case v1::FromExecutor::kValues: {
      Job& job = jobs_[processes_[process].job_id];
      if (job.process != process || job.values_waiters.empty()) return;
      const Waiter waiter = job.values_waiters.front();
      job.values_waiters.pop_front();
      v1::CommandResult result;
      *result.mutable_values() = message.values().piece();
      return Answer(waiter, FromProto(message.values().status()), std::move(result));
    }
    case v1::FromExecutor::kSaved: {
      Job& job = jobs_[processes_[process].job_id];
      if (job.process != process || job.save_waiters.empty()) return;
      const Waiter waiter = job.save_waiters.front();
      job.save_waiters.pop_front();
      v1::CommandResult result;
      *result.mutable_saved() = message.saved().report();
      return Answer(waiter, FromProto(message.saved().status()), std::move(result));
    }
    default:
      log::Warning("executor {} sent a message that this daemon does not know",
                   processes_[process].pid);
  }
}

void WorkerCore::OnLine(ProcessId process, std::int64_t time_us, const std::string& line) {
  std::string text = Cut(line);
  if (const auto dying = dying_.find(process); dying != dying_.end()) {
    return AddLine(dying->second, time_us, std::move(text));
  }
  const auto found = processes_.find(process);
  if (found == processes_.end()) return;
  if (TellsWhy(text)) found->second.cause = text;
  found->second.last_lines.push_back(text);
  if (found->second.last_lines.size() > kLastLines) found->second.last_lines.pop_front();
  if (found->second.use != Use::kJob) {
    log::Debug("executor {}: {}", found->second.pid, text);
    return;
  }
  AddLine(found->second.job_id, time_us, std::move(text));
}

void WorkerCore::AddLine(const std::string& job_id, std::int64_t time_us, std::string text) {
  Job& job = jobs_[job_id];
  if (job.lines.lines_size() >= kMostLinesWaiting) {
    ++job.dropped_lines;
    return;
  }
  v1::LogLine& entry = *job.lines.add_lines();
  entry.set_time_us(time_us);
  entry.set_text(std::move(text));
  if (std::exchange(job.flush_planned, true)) return;
  (void)scheduler_.RunAfter(options_.log_delay,
                            lifeline_.Guard([this, job_id] { FlushLines(job_id); }));
}

void WorkerCore::FlushLines(const std::string& job_id) {
  Job& job = jobs_[job_id];
  job.flush_planned = false;
  if (job.lines.lines_size() == 0) return;
  if (job.dropped_lines > 0) {
    v1::LogLine& note = *job.lines.add_lines();
    note.set_time_us(job.lines.lines(job.lines.lines_size() - 2).time_us());
    note.set_text(fmt::format(
        "({} dropped: too many at once)",
        Counted(static_cast<std::uint64_t>(std::exchange(job.dropped_lines, 0)), "line")));
  }
  v1::DaemonMessage message;
  message.mutable_log()->Swap(&job.lines);
  message.mutable_log()->set_job_id(job_id);
  io_.ToCoordinator(std::move(message));
}

void WorkerCore::OnExited(ProcessId id, const std::string& how, bool from_outside) {
  if (const auto dying = dying_.find(id); dying != dying_.end()) {
    FlushLines(dying->second);
    dying_.erase(dying);
    return;
  }
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;  // killed by us
  Process process = std::move(found->second);
  processes_.erase(found);
  std::deque<std::string>& lines = process.last_lines;
  const bool told = std::find(lines.begin(), lines.end(), process.cause) != lines.end();
  if (!how.starts_with("signal")) process.cause.clear();
  if (!process.cause.empty() && !told) lines.push_front(process.cause);
  std::string last = process.cause;
  if (last.empty() && !lines.empty()) last = lines.back();
  if (!last.empty()) last = ": " + last;
  switch (process.use) {
    case Use::kSpare:
      log::Warning("the executor started in advance ({}) ended: {}{}", process.pid, how, last);
      spare_.reset();
      return KeepWarm(Millis(10'000));
    case Use::kCheck:
      return EndCheck(id,
                      Internal("the executor ended while {}: {}{}", checks_[id].what, how, last),
                      {}, false);
    case Use::kJob:
      return OnJobExited(process.job_id, process,
                         {.how = how, .stuck = false, .from_outside = from_outside});
  }
}

void WorkerCore::OnJobExited(const std::string& job_id, const Process& process,
                             const ExecutorEnd& end) {
  Job& job = jobs_[job_id];
  log::With({{"job", job_id}}).Warning("executor {} ended: {}", process.pid, end.how);
  job.process.reset();
  job.starting = job.ready = false;
  job.running.clear();
  FlushLines(job_id);
  Tell(v1::ExecutorEvent::KIND_EXITED, job_id, job, process.pid, end, process.last_lines);
  AnswerAll(job, Unavailable("the executor of job {} on worker:{} ended before it was ready: {}",
                             job_id, options_.worker_index, end.how));
  if (draining_) FinishDrain();
}

// ---- Processes and files

Result<ProcessId> WorkerCore::Launch(Use use, const std::string& job_id) {
  const ProcessId id(next_process_++);
  Process& process = processes_[id];
  process.use = use;
  process.job_id = job_id;
  const Result<int> pid = io_.Launch(id);
  if (!pid.ok()) {
    processes_.erase(id);
    return Annotate(pid.status(), "executor");
  }
  process.pid = *pid;
  return id;
}

Result<ProcessId> WorkerCore::TakeProcess(Use use, const std::string& job_id) {
  KeepWarm(options_.warm_delay);
  if (!spare_) return Launch(use, job_id);
  const ProcessId id = *std::exchange(spare_, std::nullopt);
  processes_[id].use = use;
  processes_[id].job_id = job_id;
  return id;
}

void WorkerCore::KeepWarm(Millis delay) {
  if (!options_.warm || draining_ || std::exchange(spare_planned_, true)) return;
  (void)scheduler_.RunAfter(delay, lifeline_.Guard([this] {
    spare_planned_ = false;
    if (spare_ || draining_) return;
    const Result<ProcessId> spare = Launch(Use::kSpare, "");
    if (spare.ok()) {
      spare_ = *spare;
    } else {
      log::Warning("{}", Message(spare.status()));
    }
  }));
}

void WorkerCore::KillProcess(ProcessId process) {
  const auto found = processes_.find(process);
  if (found == processes_.end()) return;
  if (found->second.use == Use::kJob) dying_[process] = found->second.job_id;
  processes_.erase(found);
  io_.Kill(process);
}

void WorkerCore::WithArchive(const v1::JobSpec& spec, OnPath then) {
  const std::string& sha256 = spec.model().archive_sha256();
  if (sha256.empty()) return then(std::string());
  std::vector<OnPath>& waiting = fetches_[sha256];
  waiting.push_back(std::move(then));
  if (waiting.size() == 1) io_.Fetch(sha256);
}

void WorkerCore::OnFetched(const std::string& sha256, const Result<std::string>& path) {
  const auto found = fetches_.find(sha256);
  if (found == fetches_.end()) return;
  const std::vector<OnPath> waiting = std::move(found->second);
  fetches_.erase(found);
  for (const OnPath& then : waiting) then(path);
}

// ---- To the coordinator

void WorkerCore::Answer(Waiter waiter, const Status& status, v1::CommandResult result) {
  result.set_command_id(waiter.command.value());
  if (!status.ok()) result.clear_body();
  SetStatus(status, *result.mutable_status());
  io_.Reply(waiter.stream, std::move(result));
}

void WorkerCore::AnswerAll(Job& job, const Status& status) {
  for (const Waiter& waiter : std::exchange(job.waiters, {})) Answer(waiter, status);
  for (auto* waiters : {&job.values_waiters, &job.save_waiters}) {
    for (const Waiter& waiter : std::exchange(*waiters, {})) {
      Answer(waiter, status.ok() ? Unavailable("the job's executor was started again") : status);
    }
  }
}

void WorkerCore::Tell(v1::ExecutorEvent::Kind kind, const std::string& job_id, const Job& job,
                      int pid, const ExecutorEnd& end, const std::deque<std::string>& lines) {
  v1::DaemonMessage message;
  v1::ExecutorEvent& event = *message.mutable_executor();
  event.set_job_id(job_id);
  event.set_view(job.view.value());
  event.set_pid(static_cast<std::uint32_t>(pid));
  event.set_kind(kind);
  event.set_how(end.how);
  event.set_stuck(end.stuck);
  event.set_from_outside(end.from_outside);
  for (const std::string& line : lines) event.add_last_lines(line);
  io_.ToCoordinator(std::move(message));
}

void WorkerCore::FillHeartbeat(v1::Heartbeat& heartbeat) const {
  heartbeat.set_closures_done(closures_done_);
  for (const auto& [id, process] : processes_) {
    if (process.use == Use::kJob)
      heartbeat.set_executor_pid(static_cast<std::uint32_t>(process.pid));
  }
}

// ---- Drain

bool WorkerCore::Idle() const {
  return std::all_of(jobs_.begin(), jobs_.end(),
                     [](const auto& entry) { return entry.second.running.empty(); });
}

void WorkerCore::Drain(Millis limit, std::function<void()> done) {
  draining_ = true;
  drained_ = std::move(done);
  if (spare_) KillProcess(*std::exchange(spare_, std::nullopt));
  (void)scheduler_.RunAfter(limit, lifeline_.Guard([this] {
    for (auto& [id, job] : jobs_) {
      for (const auto& [key, assignment] : job.running) {
        Refuse(assignment, Unavailable("worker:{} is draining", options_.worker_index));
      }
      job.running.clear();
    }
    FinishDrain();
  }));
  FinishDrain();
}

void WorkerCore::FinishDrain() {
  if (!drained_ || !Idle()) return;
  const auto done = std::exchange(drained_, nullptr);
  for (auto& [id, job] : jobs_) {
    if (job.process) KillProcess(*std::exchange(job.process, std::nullopt));
    job.ready = job.starting = false;
    FlushLines(id);
  }
  while (!checks_.empty()) {
    EndCheck(checks_.begin()->first, Unavailable("worker:{} is draining", options_.worker_index),
             {}, false);
  }
  done();
}

}  // namespace muster::worker
