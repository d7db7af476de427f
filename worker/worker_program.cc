// The part of WorkerCore that runs users' programs: executors and probes.
#include <string_view>

#include <fmt/format.h>

#include "common/base/version.h"
#include "common/base/version_skew.h"
#include "common/base/words.h"
#include "common/messages/status_proto.h"
#include "common/telemetry/log.h"
#include "worker/worker_core.h"

namespace muster::worker {
namespace {

// What a program is linked with speaks to daemons and parameter servers, whose messages and frames
// are those of one release. Patches of it change neither these nor what headers promise, so a
// program outlives them: it need not be built anew, and running jobs get executors from an upgraded
// worker.
Status CheckRelease(const v1::ProgramReady& ready) {
  constexpr std::string_view kName = "muster ";
  std::string_view theirs = ready.abi();
  theirs.remove_prefix(theirs.starts_with(kName) ? kName.size() : 0);
  theirs = theirs.substr(0, theirs.find(' '));
  if (SameRelease(theirs, Version())) return Ok();
  return InvalidArgument(
      "the program was built with Muster {}, and this worker is of Muster {}: build it with the "
      "SDK of the cluster's release",
      theirs, Version());
}

// Its own trouble comes first: it may not have come to saying what it is.
Status Refusal(const v1::ProgramReady& ready) {
  const Status status = FromProto(ready.status());
  return status.ok() ? CheckRelease(ready) : status;
}

}  // namespace

Result<ProcessId> WorkerCore::LaunchProgram(Use use, const std::string& job_id,
                                            const std::string& path, const v1::ProgramSpec& spec,
                                            v1::ProgramStart start) {
  start.mutable_task()->set_type("worker");
  start.mutable_task()->set_index(options_.worker_index);
  start.set_threads(options_.threads);
  start.set_link(options_.link);
  start.set_host_id(options_.host_id);
  const ProcessId id(next_process_++);
  const Result<int> pid = io_.LaunchProgram(id, path, spec, start);
  if (!pid.ok()) return pid.status();
  processes_[id] = {.pid = *pid, .use = use, .program = true, .job_id = job_id, .last_lines = {}};
  return id;
}

// Starts the executor of the job that is starting.
void WorkerCore::BeginProgram(const std::string& job_id, const std::string& path) {
  Job& job = jobs_[job_id];
  v1::ProgramStart start = job.start.program();
  start.set_role(v1::PROGRAM_ROLE_EXECUTOR);
  start.set_job_id(job_id);
  start.set_epoch(job.epoch.value());
  const Result<ProcessId> process =
      LaunchProgram(Use::kJob, job_id, path, job.start.spec().program(), std::move(start));
  if (!process.ok()) {
    job.starting = false;
    return AnswerAll(job, process.status());
  }
  job.process = *process;
  job.pulse.Clear();
  job.silent_looks = 0;
  const int pid = processes_[*process].pid;
  log::With({{"job", job_id}}).Info("executor {} starts, its number is {}", pid, job.incarnation);
  Tell(v1::ExecutorEvent::KIND_STARTED, job_id, job, pid);
}

void WorkerCore::CheckProgram(Waiter waiter, const v1::JobSpec& spec) {
  WithFile({FileKind::kProgram, spec.program().sha256()}, waiter,
           [this, waiter, spec](const Result<std::string>& path) {
             if (!path.ok()) return Answer(waiter, Annotate(path.status(), "the program"));
             if (draining_) {
               return Answer(waiter, Unavailable("worker:{} is draining", options_.worker_index));
             }
             v1::ProgramStart start;
             start.set_role(v1::PROGRAM_ROLE_PROBE);
             start.set_job_name(spec.name());
             const Result<ProcessId> process =
                 LaunchProgram(Use::kCheck, "", *path, spec.program(), std::move(start));
             if (!process.ok()) return Answer(waiter, process.status());
             WatchCheck(*process, waiter, "asking the program for its functions",
                        options_.check_limit);
           });
}

void WorkerCore::OnProgram(ProcessId process, const v1::FromProgram& message) {
  const auto found = processes_.find(process);
  if (found == processes_.end()) return;  // killed
  switch (message.body_case()) {
    case v1::FromProgram::kReady:
      return found->second.use == Use::kCheck ? OnProbed(process, message.ready())
                                              : OnServing(process, message.ready());
    case v1::FromProgram::kPulse:
      return OnPulse(process, message.pulse());
    default:
      log::Warning("process {} of a program sent a message that this daemon does not know",
                   found->second.pid);
  }
}

void WorkerCore::OnProbed(ProcessId process, const v1::ProgramReady& ready) {
  v1::CommandResult result;
  v1::CheckReport& report = *result.mutable_check();
  report.set_functions(ready.functions());
  report.set_function_count(ready.function_count());
  report.set_abi(ready.abi());
  EndCheck(process, Refusal(ready), std::move(result), false);
}

void WorkerCore::OnServing(ProcessId process, const v1::ProgramReady& ready) {
  EndStart(process, Refusal(ready),
           fmt::format("{}, {}", Counted(ready.function_count(), "function"), ready.abi()),
           ready.endpoint());
}

}  // namespace muster::worker
