// The part of WorkerCore that asks executors for their model's values, has them saved, and watches
// over them.
#include "common/messages/status_proto.h"
#include "worker/worker_core.h"

namespace muster::worker {
namespace {

// Looks of the watchdog within stuck_limit; it kills after one more.
constexpr int kLooks = 6;
// Without a pulse, which comes every second, an executor is watched even if it had nothing.
constexpr Millis kSilence{4'000};
// An executor that uses a hundredth of one processor is not idle.
constexpr int kBusyShare = 100;

}  // namespace

// ---- After a coordinator

// What it has done stays done, and its variables and buffers stay where they are.
bool WorkerCore::Adopt(Job& job, Waiter waiter, const v1::StartExecutor& start) {
  const v1::JobPlan& plan = start.plan();
  const Epoch epoch(plan.epoch());
  if (!job.ready || job.program || ViewId(plan.view()) != job.view || epoch < job.epoch)
    return false;
  job.epoch = epoch;
  job.claimed = true;
  job.adopters.push_back(waiter);
  v1::ToExecutor message;
  message.mutable_adopt()->set_least_attempt(Attempt(epoch, 0).value());
  io_.Send(*job.process, message);
  return true;
}

// It has nothing left of what the earlier coordinators' drivers gave it.
void WorkerCore::OnAdopted(ProcessId process, const v1::AdoptAnswer& answer) {
  const std::string& job_id = processes_[process].job_id;
  Job& job = jobs_[job_id];
  if (job.process != process || job.adopters.empty()) return;
  const Waiter waiter = job.adopters.front();
  job.adopters.erase(job.adopters.begin());
  const Status status = FromProto(answer.status());
  if (!status.ok()) {
    return Answer(waiter, NotFound("the executor of worker:{} cannot go on: {}",
                                   options_.worker_index, Message(status)));
  }
  v1::CommandResult result;
  result.mutable_adopted()->add_shards()->set_watermark(answer.steps());
  result.mutable_adopted()->set_executor(job.incarnation.value());
  Answer(waiter, Ok(), std::move(result));
  Tell(v1::ExecutorEvent::KIND_READY, job_id, job, processes_[process].pid);
}

// ---- Values of the model

Result<WorkerCore::Job*> WorkerCore::Serving(const std::string& job_id, Epoch epoch, ViewId view) {
  MUSTER_TRY(CheckFence(job_id, epoch, view));
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end() || view != found->second.view || !found->second.ready) {
    return Unavailable("worker:{} has no executor of job {} for view {}", options_.worker_index,
                       job_id, view);
  }
  return &found->second;
}

// Passes on what the job's executor is asked and answers; AnswerFirst() answers in the same order.
template <class Request>
void WorkerCore::AskExecutor(Waiter waiter, const Request& request,
                             std::vector<Waiter> Job::* waiters, v1::ToExecutor message) {
  const Result<Job*> job =
      Serving(request.job_id(), Epoch(request.epoch()), ViewId(request.view()));
  if (!job.ok()) return Answer(waiter, job.status());
  if (waiters != nullptr) ((*job)->*waiters).push_back(waiter);
  io_.Send(*(*job)->process, message);
  if (waiters == nullptr) Answer(waiter, Ok());
}

void WorkerCore::GetValues(Waiter waiter, const v1::GetValues& request) {
  v1::ToExecutor message;
  *message.mutable_get_values() = request;
  AskExecutor(waiter, request, &Job::values_waiters, std::move(message));
}

// The executor says nothing to it.
void WorkerCore::SetBuffers(Waiter waiter, const v1::SetBuffers& request) {
  v1::ToExecutor message;
  *message.mutable_set_buffers() = request;
  AskExecutor(waiter, request, nullptr, std::move(message));
}

void WorkerCore::SaveVariables(Waiter waiter, const v1::SaveVariables& request) {
  v1::ToExecutor message;
  *message.mutable_save() = request;
  AskExecutor(waiter, request, &Job::save_waiters, std::move(message));
}

void WorkerCore::JoinGroup(Waiter waiter, const v1::JoinGroup& request) {
  v1::ToExecutor message;
  *message.mutable_join() = request;
  AskExecutor(waiter, request, &Job::join_waiters, std::move(message));
}

void WorkerCore::AnswerFirst(ProcessId process, std::vector<Waiter> Job::* waiters,
                             const v1::StatusProto& status, v1::CommandResult result) {
  Job& job = jobs_[processes_[process].job_id];
  if (job.process != process || (job.*waiters).empty()) return;
  const Waiter waiter = (job.*waiters).front();
  (job.*waiters).erase((job.*waiters).begin());
  Answer(waiter, FromProto(status), std::move(result));
}

// ---- The watchdog

void WorkerCore::Watch() {
  if (options_.stuck_limit.count() == 0 || std::exchange(watching_, true)) return;
  (void)scheduler_.RunAfter(options_.stuck_limit / kLooks, lifeline_.Guard([this] { Look(); }));
}

void WorkerCore::Look() {
  watching_ = false;
  bool any = false;
  for (auto& [id, job] : jobs_) {
    if (!job.process || !job.ready) continue;
    any = true;
    const bool silent = job.silent_looks++ * options_.stuck_limit / kLooks > kSilence;
    if (!silent && job.pulse.running_size() == 0) {
      job.looks = job.idle_looks = 0;
      continue;
    }
    std::optional<ExecutorEnd> end = Stuck(job);
    if (!end) continue;
    // A model's numbers are those of steps, not its driver's.
    if (job.pulse.running_size() > 0 && job.program) {
      for (const v1::RunningClosure& one : job.pulse.running()) {
        if (!end->running) end->running.emplace();
        end->running->emplace_back(one.closure());
      }
    }
    const ProcessId killed = *job.process;
    const Process process = processes_[killed];
    KillProcess(killed);
    OnJobExited(id, process, *end);
  }
  if (any) Watch();
}

// The oldest closure that an executor has, as far as its daemon knows.
std::string WorkerCore::WhatRuns(const Job& job) {
  return job.pulse.running_size() == 0 ? "it"
                                       : fmt::format("closure {}", job.pulse.running(0).closure());
}

// Counts looks, not time: a daemon that was stopped itself looks once when it goes on.
std::optional<ExecutorEnd> WorkerCore::Stuck(Job& job) {
  const Millis cpu = io_.CpuTime(*job.process).value_or(Millis(0));
  const Millis used = cpu - std::exchange(job.cpu, cpu);
  const Millis passed = options_.stuck_limit / kLooks;
  ++job.looks;
  // One that waits for a slower member of its group is not to blame. It says so again and again: of
  // one that is stopped itself no wait is told (process::WaitPage::kFresh).
  const std::optional<process::Wait> wait = io_.WaitOf(*job.process);
  // Less than before: something that it had started has ended, which is life.
  const bool lives = used < Millis(0) || used * kBusyShare >= passed;
  job.idle_looks = wait || lives ? 0 : job.idle_looks + 1;
  const bool idle = job.idle_looks > kLooks;
  // What the first look has seen may have begun just before it.
  const bool long_step = options_.step_limit.count() > 0 && job.looks > 1 &&
                         passed * (job.looks - 1) >= options_.step_limit;
  if (!idle && !long_step) return std::nullopt;
  const auto seconds = [](Millis time) { return static_cast<double>(time.count()) / 1000; };
  const std::string what = WhatRuns(job);
  // One that stands still may have been stopped.
  if (idle) {
    return ExecutorEnd{
        .how = fmt::format(
            "its worker's watchdog: {} got nowhere for {:g} s and used no processor time", what,
            seconds(options_.stuck_limit)),
        .stuck = true,
        .from_outside = true};
  }
  if (wait) {
    return ExecutorEnd{
        .how = fmt::format("its worker's watchdog: {} has waited for {} in {}, and has no answer "
                           "within the step limit of {:g} s (--step-timeout)",
                           what, wait->awaited, wait->call, seconds(options_.step_limit)),
        .stuck = true,
        .from_outside = true};
  }
  return ExecutorEnd{
      .how = fmt::format("its worker's watchdog: {} has computed for {:g} s without an end: no "
                         "answer within the step limit (--step-timeout)",
                         what, seconds(options_.step_limit)),
      .stuck = true,
      .from_outside = false};
}

}  // namespace muster::worker
