// The part of WorkerCore that asks executors for their model's values, has them saved, and watches
// over them.
#include <algorithm>

#include "worker/worker_core.h"

namespace muster::worker {
namespace {

// Looks of the watchdog within stuck_limit; it kills after one more.
constexpr int kLooks = 6;
// An executor that uses a hundredth of one processor is not idle.
constexpr int kBusyShare = 100;

}  // namespace

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

void WorkerCore::GetValues(Waiter waiter, const v1::GetValues& request) {
  const Result<Job*> job =
      Serving(request.job_id(), Epoch(request.epoch()), ViewId(request.view()));
  if (!job.ok()) return Answer(waiter, job.status());
  (*job)->values_waiters.push_back(waiter);
  v1::ToExecutor message;
  *message.mutable_get_values() = request;
  io_.Send(*(*job)->process, message);
}

void WorkerCore::SetBuffers(Waiter waiter, const v1::SetBuffers& request) {
  const Result<Job*> job =
      Serving(request.job_id(), Epoch(request.epoch()), ViewId(request.view()));
  if (job.ok()) {
    v1::ToExecutor message;
    *message.mutable_set_buffers() = request;
    io_.Send(*(*job)->process, message);
  }
  Answer(waiter, job.status());
}

void WorkerCore::SaveVariables(Waiter waiter, const v1::SaveVariables& request) {
  const Result<Job*> job =
      Serving(request.job_id(), Epoch(request.epoch()), ViewId(request.view()));
  if (!job.ok()) return Answer(waiter, job.status());
  (*job)->save_waiters.push_back(waiter);
  v1::ToExecutor message;
  *message.mutable_save() = request;
  io_.Send(*(*job)->process, message);
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
    if (job.running.empty() || !job.process) continue;
    const std::optional<ExecutorEnd> end = Stuck(job);
    if (!end) {
      any = true;
      continue;
    }
    const ProcessId killed = *job.process;
    const Process process = processes_[killed];
    KillProcess(killed);
    OnJobExited(id, process, *end);
  }
  if (any) Watch();
}

// Counts looks, not time: a daemon that was stopped itself looks once when it goes on.
std::optional<ExecutorEnd> WorkerCore::Stuck(Job& job) {
  const Millis cpu = io_.CpuTime(*job.process).value_or(Millis(0));
  const Millis used = cpu - std::exchange(job.cpu, cpu);
  const Millis passed = options_.stuck_limit / kLooks;
  ++job.looks;
  job.idle_looks = used * kBusyShare >= passed ? 0 : job.idle_looks + 1;
  const bool idle = job.idle_looks > kLooks;
  const bool long_step =
      options_.step_limit.count() > 0 && passed * job.looks >= options_.step_limit;
  if (!idle && !long_step) return std::nullopt;
  const auto oldest = std::min_element(
      job.running.begin(), job.running.end(),
      [](const auto& a, const auto& b) { return a.second.attempt() < b.second.attempt(); });
  const auto seconds = [](Millis time) { return static_cast<double>(time.count()) / 1000; };
  const std::uint64_t closure = oldest->second.closure().id();
  // One that stands still may have been stopped.
  if (idle) {
    return ExecutorEnd{
        .how = fmt::format("its worker's watchdog: closure {} got nowhere for {:g} s and "
                           "used no processor time",
                           closure, seconds(options_.stuck_limit)),
        .stuck = true,
        .from_outside = true};
  }
  return ExecutorEnd{
      .how = fmt::format("its worker's watchdog: closure {} has computed for {:g} s without "
                         "an end: no answer within the step limit (--step-timeout)",
                         closure, seconds(options_.step_limit)),
      .stuck = true,
      .from_outside = false};
}

}  // namespace muster::worker
