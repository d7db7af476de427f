#include "worker/worker_core.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/host_port.h"
#include "common/base/trouble.h"
#include "common/base/words.h"
#include "common/messages/status_proto.h"
#include "common/telemetry/log.h"
#include "worker/waits.h"

namespace muster::worker {

WorkerCore::WorkerCore(Options options, Scheduler& scheduler, WorkerIo& io)
    : options_(std::move(options)), scheduler_(scheduler), io_(io) {}

void WorkerCore::Start() { KeepWarm(Millis(0)); }

void WorkerCore::OnAttached() {
  // Their answers would go to a stream that has ended, and the coordinator asks again.
  EndChecks(Aborted("the coordinator that asked for it was lost"));
  for (auto& [file, waiting] : fetches_) {
    std::erase_if(waiting, [](const Wanting& one) { return one.waiter.has_value(); });
  }
  bool any = false;
  for (auto& [id, job] : jobs_) {
    // One whose file is still on its way would begin for nobody.
    job.claimed = !job.process && !job.starting;
    any = any || !job.claimed;
  }
  // That of an earlier registration would leave this one less time.
  (void)scheduler_.Cancel(std::exchange(unclaimed_timer_, 0));
  if (!any) return;
  unclaimed_timer_ =
      scheduler_.RunAfter(options_.unclaimed_limit, lifeline_.Guard([this] { EndUnclaimed(); }));
}

void WorkerCore::EndUnclaimed() {
  unclaimed_timer_ = 0;
  for (auto& [id, job] : jobs_) {
    if (job.claimed || (!job.process && !job.starting)) continue;
    log::With({{"job", id}})
        .Info("the coordinator has not asked for this job's executor since it is back: ending it");
    StopExecutor(id);
  }
}

// What the coordinator wants. Each command is answered once: here, or by what it began.
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
      if (command.check_job().spec().has_program()) {
        return CheckProgram(waiter, command.check_job().spec());
      }
      v1::ToExecutor message;
      *message.mutable_check() = command.check_job();
      return RunCheck(waiter, std::move(message), command.check_job().spec(), "checking the job",
                      options_.check_limit);
    }
    case v1::Command::kProbeData: {
      v1::ToExecutor message;
      *message.mutable_probe() = command.probe_data();
      return RunCheck(waiter, std::move(message), command.probe_data().spec(), "opening the data",
                      options_.check_limit);
    }
    case v1::Command::kEvaluateCheckpoint: {
      v1::ToExecutor message;
      *message.mutable_evaluate() = command.evaluate_checkpoint();
      message.set_threads(options_.threads);
      return RunCheck(waiter, std::move(message), command.evaluate_checkpoint().spec(),
                      "evaluating a checkpoint", options_.step_limit);
    }
    case v1::Command::kGetValues:
      return GetValues(waiter, command.get_values());
    case v1::Command::kSetBuffers:
      return SetBuffers(waiter, command.set_buffers());
    case v1::Command::kSaveVariables:
      return SaveVariables(waiter, command.save_variables());
    case v1::Command::kJoinGroup:
      return JoinGroup(waiter, command.join_group());
    default:
      Answer(waiter,
             Unimplemented("worker:{} does not know command {} (kind {})", options_.worker_index,
                           command.id(), static_cast<int>(command.body_case())));
  }
}

// ---- Executors of jobs

Result<bool> WorkerCore::IsKnown(const Job& job, Waiter waiter, const v1::StartExecutor& start) {
  const v1::JobPlan& plan = start.plan();
  const Incarnation incarnation(start.program().incarnation());
  const Epoch epoch(plan.epoch());
  const ViewId view(plan.view());
  if (epoch < job.epoch || view < job.view) return IsOver(plan.job_id(), job, epoch, view);
  const bool same_view = epoch == job.epoch && view == job.view;
  if (epoch == job.epoch && incarnation < job.incarnation) {
    return Aborted("job {}: executor {} is over; worker:{} is at executor {}", plan.job_id(),
                   incarnation, options_.worker_index, job.incarnation);
  }
  if (!same_view || incarnation != job.incarnation) return false;
  if (job.served && !job.ready) {
    return Aborted("job {}: executor {} has ended; the next one needs another number",
                   plan.job_id(), incarnation);
  }
  if (job.ready) {
    // What was said of it may have been lost with the stream.
    Tell(v1::ExecutorEvent::KIND_READY, plan.job_id(), job, processes_.at(*job.process).pid);
    Answer(waiter, Ok());
  }
  return job.ready || job.starting;
}

// Begins the job's executor, in the place of an older one.
void WorkerCore::StartExecutor(Waiter waiter, const v1::StartExecutor& start) {
  const v1::JobPlan& plan = start.plan();
  if (draining_) {
    return Answer(waiter, Unavailable("worker:{} is draining", options_.worker_index));
  }
  Job& job = jobs_[plan.job_id()];
  if (start.adopt() && Adopt(job, waiter, start)) return;
  if (start.adopt() && plan.ps().empty()) {
    const Status fence = CheckFence(plan.job_id(), Epoch(plan.epoch()), ViewId(plan.view()));
    if (!fence.ok()) return Answer(waiter, fence);
    return Answer(waiter,
                  NotFound("worker:{} has no executor of view {} of job {}: the variables that it "
                           "held are gone",
                           options_.worker_index, plan.view(), plan.job_id()));
  }
  const Result<bool> known = IsKnown(job, waiter, start);
  if (!known.ok()) return Answer(waiter, known.status());
  job.claimed = true;
  if (*known) {
    if (job.starting) job.waiters.push_back(waiter);
    return;
  }
  const Epoch epoch(plan.epoch());
  const ViewId view(plan.view());
  if (job.process) KillProcess(*std::exchange(job.process, std::nullopt));
  AnswerAll(job, Aborted("job {}: replaced by epoch {}, view {}", plan.job_id(), epoch, view));
  FlushLines(plan.job_id());
  job.begun = ++begun_;
  job.epoch = epoch;
  job.view = view;
  job.incarnation = Incarnation(start.program().incarnation());
  job.program = start.spec().has_program();
  job.start = start;
  job.waiters = {waiter};
  job.starting = true;
  job.ready = job.served = false;
  ForgetJobs();
  const auto begin = [this, id = plan.job_id(), epoch, view,
                      incarnation = job.incarnation](const Result<std::string>& path) {
    Job& now = jobs_[id];
    if (now.epoch != epoch || now.view != view || now.incarnation != incarnation || !now.starting ||
        now.process) {
      return;
    }
    if (path.ok()) {
      now.program ? BeginProgram(id, *path) : BeginJob(id, *path);
    } else {
      now.starting = false;
      AnswerAll(now,
                Annotate(path.status(), now.program ? "the job's program" : "the job's archive"));
    }
    now.start = v1::StartExecutor();  // Clear() would keep its memory
  };
  WithFile(FileOf(start.spec()), std::nullopt, begin);
}

void WorkerCore::ForgetJobs() {
  while (jobs_.size() > kMostJobs) {
    auto oldest = jobs_.end();
    for (auto at = jobs_.begin(); at != jobs_.end(); ++at) {
      const Job& job = at->second;
      if (job.process || job.starting || job.flush_planned) continue;
      if (oldest == jobs_.end() || job.begun < oldest->second.begun) oldest = at;
    }
    if (oldest == jobs_.end()) return;
    jobs_.erase(oldest);
  }
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
  *start.mutable_start() = std::move(job.start);
  v1::ProgramStart& serving = *start.mutable_start()->mutable_program();
  serving.set_link(options_.link);
  serving.set_host_id(options_.host_id);
  io_.Complete(serving);
  start.set_archive_path(archive_path);
  start.set_cache_directory(options_.cache_directory);
  start.set_link(options_.link);
  start.set_host_id(options_.host_id);
  start.set_threads(options_.threads);
  start.set_worker_index(options_.worker_index);
  job.pulse.Clear();
  job.silent_looks = 0;
  io_.Send(*process, message);
  const int pid = processes_[*process].pid;
  log::With({{"job", job_id}})
      .Info("executor {} starts view {}, its number is {}", pid, job.view, job.incarnation);
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
  job.start = v1::StartExecutor();  // of one whose file is still on its way
  AnswerAll(job, Aborted("job {}: its executor was stopped", job_id));
  FlushLines(job_id);
  if (draining_) FinishDrain();
}

void WorkerCore::OnReady(ProcessId process, const v1::ExecutorReady& ready) {
  const std::string& job_id = processes_[process].job_id;
  if (const Job& job = jobs_[job_id]; job.process == process && job.ready) {
    return Tell(v1::ExecutorEvent::KIND_READY, job_id, job, processes_[process].pid);
  }
  EndStart(process, FromProto(ready.status()),
           fmt::format("libtorch {}, {}", ready.torch_version(), ready.blas()), ready.endpoint(),
           ready.group_address());
}

// Whoever asked for the executor is answered; one that cannot start is gone.
void WorkerCore::EndStart(ProcessId process, const Status& status, const std::string& what,
                          v1::DataEndpoint endpoint, const std::string& group_address) {
  const std::string job_id = processes_[process].job_id;
  Job& job = jobs_[job_id];
  if (job.process != process || !job.starting) return;
  job.starting = false;
  if (status.ok()) {
    job.ready = job.served = true;
    const auto reached_at = [this](const std::string& bound) {
      if (options_.advertised_host.empty() || bound.empty()) return bound;
      return JoinHostPort(options_.advertised_host, bound.substr(bound.rfind(':') + 1));
    };
    endpoint.set_tcp_address(reached_at(endpoint.tcp_address()));
    job.endpoint = std::move(endpoint);
    job.group_address = reached_at(group_address);
    log::With({{"job", job_id}}).Info("executor ready: {}", what);
    Tell(v1::ExecutorEvent::KIND_READY, job_id, job, processes_[process].pid);
    Watch();
  } else {
    log::With({{"job", job_id}}).Warning("executor cannot start: {}", Message(status));
    KillProcess(process);
    job.process.reset();
  }
  AnswerAll(job, status);
}

void WorkerCore::OnPulse(ProcessId process, const v1::ProgramPulse& pulse) {
  Job& job = jobs_[processes_[process].job_id];
  if (job.process != process) return;
  const auto first = [](const v1::ProgramPulse& one) {
    return one.running_size() == 0 ? 0 : one.running(0).attempt();
  };
  if (pulse.ended() != job.pulse.ended() || first(pulse) != first(job.pulse)) {
    job.looks = job.idle_looks = 0;
  }
  closures_done_ += pulse.ended() - job.pulse.ended();
  job.pulse = pulse;
  job.silent_looks = 0;
  job.awaits_pulse = false;
  if (draining_) FinishDrain();
}

// ---- What executors say

// Answers go to those who wait for them; one from a process that was killed meanwhile to nobody.
void WorkerCore::OnMessage(ProcessId process, const v1::FromExecutor& message) {
  if (!processes_.contains(process)) return;  // killed
  switch (message.body_case()) {
    case v1::FromExecutor::kReady:
      return OnReady(process, message.ready());
    case v1::FromExecutor::kPulse:
      if (processes_[process].use == Use::kCheck) return ExtendCheck(process);
      return OnPulse(process, message.pulse());
    case v1::FromExecutor::kAdopted:
      return OnAdopted(process, message.adopted());
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
    case v1::FromExecutor::kEvaluated: {
      v1::CommandResult result;
      *result.mutable_evaluation() = message.evaluated().result();
      return EndCheck(process, FromProto(message.evaluated().status()), std::move(result), false);
    }
    case v1::FromExecutor::kValues: {
      v1::CommandResult result;
      *result.mutable_values() = message.values().piece();
      return AnswerFirst(process, &Job::values_waiters, message.values().status(),
                         std::move(result));
    }
    case v1::FromExecutor::kSaved: {
      v1::CommandResult result;
      *result.mutable_saved() = message.saved().report();
      return AnswerFirst(process, &Job::save_waiters, message.saved().status(), std::move(result));
    }
    case v1::FromExecutor::kJoined: {
      v1::CommandResult result;
      *result.mutable_group() = message.joined().report();
      return AnswerFirst(process, &Job::join_waiters, message.joined().status(), std::move(result));
    }
    default:
      log::Warning("executor {} sent a message that this daemon does not know",
                   processes_[process].pid);
  }
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
  Process& process = processes_[id];
  process.use = use;
  process.job_id = job_id;
  // What it has written may be of another job, which was checked in it.
  process.last_lines.clear();
  process.cause.clear();
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
  if (found->second.use == Use::kJob) {
    const std::string& job_id = found->second.job_id;
    dying_[process] = {.job_id = job_id, .closures = jobs_[job_id].pulse.ended()};
  }
  processes_.erase(found);
  io_.Kill(process);
}

WorkerCore::File WorkerCore::FileOf(const v1::JobSpec& spec) {
  if (spec.has_program()) return {FileKind::kProgram, spec.program().sha256()};
  return {FileKind::kArchive, spec.model().archive_sha256()};
}

void WorkerCore::WithFile(const File& file, std::optional<Waiter> waiter, OnPath then) {
  if (file.second.empty()) return then(std::string());
  const auto [fetch, begins] = fetches_.try_emplace(file);
  fetch->second.push_back({waiter, std::move(then)});
  if (begins) io_.Fetch(file.second, file.first);
}

void WorkerCore::OnFetched(const std::string& sha256, const Result<std::string>& path,
                           FileKind kind) {
  const auto found = fetches_.find({kind, sha256});
  if (found == fetches_.end()) return;
  const std::vector<Wanting> waiting = std::move(found->second);
  fetches_.erase(found);
  for (const Wanting& wanting : waiting) wanting.then(path);
}

// ---- To the coordinator

void WorkerCore::AnswerAll(Job& job, const Status& status) {
  for (const Waiter& waiter : std::exchange(job.waiters, {})) Answer(waiter, status);
  for (const Waiter& waiter : std::exchange(job.adopters, {})) {
    Answer(waiter, status.ok() ? Aborted("the job's executor was started again") : status);
  }
  for (auto* waiters : {&job.values_waiters, &job.save_waiters, &job.join_waiters}) {
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
  event.set_incarnation(job.incarnation.value());
  if (kind == v1::ExecutorEvent::KIND_READY) {
    *event.mutable_endpoint() = job.endpoint;
    event.set_group_address(job.group_address);
  }
  event.set_pid(static_cast<std::uint32_t>(pid));
  event.set_kind(kind);
  event.set_how(end.how);
  event.set_stuck(end.stuck);
  event.set_from_outside(end.from_outside);
  for (const std::string& line : lines) event.add_last_lines(line);
  if (end.running) {
    event.set_running_known(true);
    for (const ClosureId closure : *end.running) event.add_running(closure.value());
  }
  io_.ToCoordinator(std::move(message));
}

void WorkerCore::FillHeartbeat(v1::Heartbeat& heartbeat) const {
  heartbeat.set_closures_done(closures_done_);
  for (const auto& [id, process] : processes_) {
    if (process.use != Use::kJob) continue;
    heartbeat.set_executor_pid(static_cast<std::uint32_t>(process.pid));
    if (const std::uint64_t bytes = io_.MemoryOf(id); bytes > 0) {
      v1::JobBytes& held = *heartbeat.add_job_bytes();
      held.set_job_id(process.job_id);
      held.set_bytes(bytes);
    }
    const std::optional<process::Wait> wait = io_.WaitOf(id);
    if (!wait) continue;
    v1::CollectiveWait& entry = *heartbeat.add_waits();
    entry = ToProto(*wait);
    entry.set_job_id(process.job_id);
    entry.mutable_task()->set_type("worker");
    entry.mutable_task()->set_index(options_.worker_index);
  }
}

void WorkerCore::NameFetching(v1::Heartbeat& heartbeat) const {
  for (const auto& [file, waiting] : fetches_) {
    for (const Wanting& wanting : waiting) {
      if (wanting.waiter) heartbeat.add_fetching(wanting.waiter->command.value());
    }
  }
  for (const auto& [id, job] : jobs_) {
    if (!job.starting || job.process) continue;
    for (const Waiter& waiter : job.waiters) heartbeat.add_fetching(waiter.command.value());
  }
}

// ---- Drain

bool WorkerCore::Idle() const {
  return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    const Job& job = entry.second;
    return !job.process || (!job.awaits_pulse && job.pulse.running_size() == 0);
  });
}

void WorkerCore::Drain(Millis limit, std::function<void()> done) {
  draining_ = true;
  drained_ = std::move(done);
  if (spare_) KillProcess(*std::exchange(spare_, std::nullopt));
  EndStarting();
  (void)scheduler_.RunAfter(limit, lifeline_.Guard([this] {
    for (auto& [id, job] : jobs_) {
      job.awaits_pulse = false;
      job.pulse.clear_running();
    }
    FinishDrain();
  }));
  DrainExecutors();
  FinishDrain();
}

// What becomes ready now would be given closures that nobody stops.
void WorkerCore::EndStarting() {
  for (auto& [id, job] : jobs_) {
    if (!job.starting) continue;
    if (job.process) KillProcess(*std::exchange(job.process, std::nullopt));
    job.starting = false;
    AnswerAll(job, Unavailable("worker:{} is draining", options_.worker_index));
    FlushLines(id);
  }
}

// Their drivers send them no more; they say by their pulse when nothing runs.
void WorkerCore::DrainExecutors() {
  v1::ToProgram to_program;
  to_program.mutable_stop();
  v1::ToExecutor to_executor;
  to_executor.mutable_stop();
  for (auto& [id, job] : jobs_) {
    if (!job.process || !job.ready) continue;
    job.awaits_pulse = true;
    if (job.program) {
      io_.SendProgram(*job.process, to_program);
    } else {
      io_.Send(*job.process, to_executor);
    }
  }
}

void WorkerCore::FinishDrain() {
  if (!drained_ || !Idle()) return;
  const auto done = std::exchange(drained_, nullptr);
  for (auto& [id, job] : jobs_) {
    if (job.process) KillProcess(*std::exchange(job.process, std::nullopt));
    job.ready = job.starting = false;
    FlushLines(id);
  }
  EndChecks(Unavailable("worker:{} is draining", options_.worker_index));
  done();
}

}  // namespace muster::worker
