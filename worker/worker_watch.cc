// The part of WorkerCore that asks executors for their model's values, has them saved, and watches
// over them.
#include <algorithm>

#include "worker/worker_core.h"

namespace muster::worker {
namespace {

// Looks of the watchdog within stuck_limit; it kills after one more.
constexpr int kLooks = 6;
// Without a pulse, which comes every second, a program's executor is watched even if it had
// nothing.
constexpr Millis kSilence{4'000};
// An executor that uses a hundredth of one processor is not idle.
constexpr int kBusyShare = 100;

}  // namespace

// ---- After a coordinator

// What it has done stays done, and its variables and buffers stay where they are.
bool WorkerCore::Adopt(Job& job, Waiter waiter, const v1::StartExecutor& start) {
  const v1::JobPlan& plan = start.plan();
  const Epoch epoch(plan.epoch());
  if (!job.ready || job.failed || job.incarnation != 0 || ViewId(plan.view()) != job.view ||
      epoch < job.epoch) {
    return false;
  }
  job.epoch = epoch;
  job.claimed = true;
  job.adopters.push_back(waiter);
  AnswerAdopters(plan.job_id(), job);
  return true;
}

void WorkerCore::AnswerAdopters(const std::string& job_id, Job& job) {
  const bool old_left = std::any_of(job.running.begin(), job.running.end(), [&](const auto& one) {
    return one.second.attempt() < Attempt(job.epoch, 0).value();
  });
  if (old_left || job.adopters.empty()) return;
  for (const Waiter& waiter : std::exchange(job.adopters, {})) {
    v1::CommandResult result;
    result.mutable_adopted()->add_shards()->set_watermark(job.steps);
    Answer(waiter, Ok(), std::move(result));
  }
  Tell(v1::ExecutorEvent::KIND_READY, job_id, job, processes_[*job.process].pid);
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
    if (!job.process) continue;
    if (job.start.has_program()) {
      if (!job.ready) continue;
      any = true;
      const bool silent = job.silent_looks++ * options_.stuck_limit / kLooks > kSilence;
      if (!silent && job.pulse.running_size() == 0) {
        job.looks = job.idle_looks = 0;
        continue;
      }
    } else if (job.running.empty()) {
      continue;
    }
    std::optional<ExecutorEnd> end = Stuck(job);
    if (!end) {
      any = true;
      continue;
    }
    if (job.pulse.running_size() > 0) {
      for (const v1::RunningClosure& one : job.pulse.running()) {
        if (!end->running) end->running.emplace();
        end->running->push_back(one.closure());
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
  if (job.start.has_program()) {
    return job.pulse.running_size() == 0
               ? "it"
               : fmt::format("closure {}", job.pulse.running(0).closure());
  }
  const auto oldest = std::min_element(
      job.running.begin(), job.running.end(),
      [](const auto& a, const auto& b) { return a.second.attempt() < b.second.attempt(); });
  return fmt::format("closure {}", oldest->second.closure().id());
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
  return ExecutorEnd{
      .how = fmt::format("its worker's watchdog: {} has computed for {:g} s without an end: no "
                         "answer within the step limit (--step-timeout)",
                         what, seconds(options_.step_limit)),
      .stuck = true,
      .from_outside = false};
}

}  // namespace muster::worker
