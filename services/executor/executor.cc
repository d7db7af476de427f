#include "services/executor/executor.h"

#include <chrono>
#include <thread>
#include <utility>

#include "common/base/limits.h"
#include "common/base/words.h"
#include "common/messages/status_proto.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "services/executor/evaluation.h"
#include "worker/engine/check.h"
#include "worker/engine/runtime.h"

namespace muster::executor {
namespace {

// A line for the job's log, which the daemon reads from stderr.
template <class... Args>
void Say(fmt::format_string<Args...> text, Args&&... args) {
  fmt::print(stderr, "{}\n", fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace

Executor::Executor(process::MessagePipe& pipe, OnClosed on_closed)
    : pipe_(pipe), on_closed_(std::move(on_closed)) {}

Status Executor::Serve() {
  std::jthread receiver([this] { Receive(); });
  std::jthread joiner([this] { JoinGroups(); });
  while (const auto message = Next(&Executor::inbox_)) {
    if (const Status status = Handle(*message); !status.ok()) {
      Say("error: {}", ToString(status));
      {
        // Before the receiver finds the pipe closed: this is why, and no ordinary end.
        const MutexLock lock(mutex_);
        if (closed_.ok()) closed_ = status;
      }
      pipe_.Shutdown();
      return status;
    }
  }
  const MutexLock lock(mutex_);
  return closed_;
}

void Executor::Receive() {
  for (;;) {
    v1::ToExecutor message;
    const Status status = pipe_.Receive(message);
    MutexLock lock(mutex_);
    if (!status.ok()) {
      if (closed_.ok()) closed_ = status;
      const Status why = closed_;
      lock.unlock();
      arrived_.notify_all();
      if (on_closed_) on_closed_(why);
      return;
    }
    (message.has_join() ? joins_ : inbox_).push_back(std::move(message));
    lock.unlock();
    arrived_.notify_all();
  }
}

std::optional<v1::ToExecutor> Executor::Next(std::deque<v1::ToExecutor> Executor::* inbox) {
  const MutexLock lock(mutex_);
  std::deque<v1::ToExecutor>& messages = this->*inbox;
  while (closed_.ok() && messages.empty()) arrived_.wait(mutex_);
  if (!closed_.ok()) return std::nullopt;
  v1::ToExecutor message = std::move(messages.front());
  messages.pop_front();
  return message;
}

// Beside the other commands and the closures, which may wait for the group that this one forms.
void Executor::JoinGroups() {
  while (const auto message = Next(&Executor::joins_)) {
    std::shared_ptr<JobRun> run;
    {
      const MutexLock lock(mutex_);
      run = run_;
    }
    Result<v1::GroupReport> report = Unavailable("this executor runs no job");
    if (run != nullptr) report = run->Join(message->join());
    v1::FromExecutor answer;
    SetStatus(report.status(), *answer.mutable_joined()->mutable_status());
    if (report.ok()) *answer.mutable_joined()->mutable_report() = *std::move(report);
    (void)pipe_.Send(answer);  // the receiver learns that the daemon has gone
  }
}

// What else the worker daemon asks, one at a time. An error returned here ends the executor; one of
// the request itself travels in its answer.
Status Executor::Handle(const v1::ToExecutor& message) {
  switch (message.body_case()) {
    case v1::ToExecutor::kStart:
      return Start(message.start());
    case v1::ToExecutor::kCheck:
      return Check(message);
    case v1::ToExecutor::kProbe: {
      v1::FromExecutor answer;
      Result<v1::ProbeReport> report = ProbeData(message.probe(), message.cache_directory());
      SetStatus(report.status(), *answer.mutable_probe()->mutable_status());
      if (report.ok()) *answer.mutable_probe()->mutable_report() = *std::move(report);
      return pipe_.Send(answer);
    }
    case v1::ToExecutor::kEvaluate:
      return Evaluate(message);
    case v1::ToExecutor::kGetValues:
      return GiveValues(message.get_values());
    case v1::ToExecutor::kSetBuffers: {
      if (run_ == nullptr) return Ok();
      const Status status = run_->SetBuffers(message.set_buffers());
      // Closures that need them are handed back: they name their version.
      if (!status.ok()) Say("error: buffers for evaluation: {}", Message(status));
      return Ok();
    }
    case v1::ToExecutor::kSave: {
      Result<v1::SaveReport> report = Unavailable("this executor runs no job");
      if (run_ != nullptr) report = run_->Save(message.save());
      v1::FromExecutor answer;
      SetStatus(report.status(), *answer.mutable_saved()->mutable_status());
      if (report.ok()) *answer.mutable_saved()->mutable_report() = *std::move(report);
      return pipe_.Send(answer);
    }
    case v1::ToExecutor::kAdopt: {
      Result<std::uint64_t> steps = Unavailable("this executor runs no job");
      if (run_ != nullptr) steps = run_->Adopt(Attempt(message.adopt().least_attempt()));
      v1::FromExecutor answer;
      SetStatus(steps.status(), *answer.mutable_adopted()->mutable_status());
      answer.mutable_adopted()->set_steps(steps.value_or(0));
      return pipe_.Send(answer);
    }
    case v1::ToExecutor::kStop:
      if (server_ != nullptr) server_->Drain();
      return Ok();
    default:
      return InvalidArgument("the worker daemon sent a message that this executor does not know");
  }
}

Status Executor::Start(const v1::ExecutorStart& start) {
  const v1::JobPlan& plan = start.start().plan();
  engine::SetThreads(start.threads());
  const engine::BlasInfo blas = engine::LoadedBlas();
  Say("executor of job {} view {}: libtorch {}, {}, {}", plan.job_id(), plan.view(),
      engine::TorchVersion(), blas.name, Counted(std::max(1u, start.threads()), "thread"));
  if (blas.slow) {
    Say("warning: libtorch runs on reference BLAS, about 20 times slower: install "
        "libopenblas0-openmp");
  }
  v1::FromExecutor answer;
  v1::ExecutorReady& ready = *answer.mutable_ready();
  const Status begun = Begin(start, ready);
  SetStatus(begun, *ready.mutable_status());
  ready.set_torch_version(engine::TorchVersion());
  ready.set_blas(blas.name);
  if (!begun.ok()) Say("error: cannot start: {}", Message(begun));
  MUSTER_TRY(pipe_.Send(answer));
  if (server_ != nullptr) server_->BeginPulse();
  return Ok();
}

// Opens the job, then the door for its driver.
Status Executor::Begin(const v1::ExecutorStart& start, v1::ExecutorReady& ready) {
  server_.reset();
  // It waits for another group, where it did for the first one.
  const auto on_group_over = [this] {
    v1::FromExecutor again;
    SetStatus(Ok(), *again.mutable_ready()->mutable_status());
    (void)pipe_.Send(again);  // the receiver learns that the daemon has gone
  };
  MUSTER_TRY_ASSIGN(std::shared_ptr<JobRun> run, JobRun::Open(start, on_group_over));
  {
    const MutexLock lock(mutex_);
    run_ = std::move(run);
  }
  MUSTER_TRY_ASSIGN(server_, ClosureServer::Start(start, *run_, pipe_));
  *ready.mutable_endpoint() = server_->endpoint();
  ready.set_group_address(run_->group_address());
  return Ok();
}

Status Executor::Check(const v1::ToExecutor& message) {
  engine::SetThreads(1);
  engine::CheckOptions options;
  options.memory_bytes = AvailableMemory();
  options.archive_path = message.archive_path();
  options.cache_directory = message.cache_directory();
  options.data = engine::CheckOptions::Data::kIfPresent;
  v1::FromExecutor answer;
  SetStatus(Ok(), *answer.mutable_check()->mutable_status());
  *answer.mutable_check()->mutable_report() = engine::CheckJob(message.check().spec(), options);
  return pipe_.Send(answer);
}

// The daemon hears of it at least every second while it gets on.
Status Executor::Evaluate(const v1::ToExecutor& message) {
  constexpr std::chrono::seconds kPulse{1};
  engine::SetThreads(message.threads());
  std::chrono::steady_clock::time_point told;
  const auto progress = [&](std::uint64_t batches) {
    const auto now = std::chrono::steady_clock::now();
    if (now - told < kPulse) return;
    told = now;
    v1::FromExecutor pulse;
    pulse.mutable_pulse()->set_ended(batches);
    (void)pipe_.Send(pulse);  // the receiver learns that the daemon has gone
  };
  v1::FromExecutor answer;
  Result<v1::EvaluationResult> result = EvaluateCheckpoint(message, progress);
  SetStatus(result.status(), *answer.mutable_evaluated()->mutable_status());
  if (result.ok()) *answer.mutable_evaluated()->mutable_result() = *std::move(result);
  return pipe_.Send(answer);
}

Status Executor::GiveValues(const v1::GetValues& request) {
  Result<v1::Piece> piece = Unavailable("this executor runs no job");
  if (run_ != nullptr) piece = run_->Values(request);
  v1::FromExecutor answer;
  SetStatus(piece.status(), *answer.mutable_values()->mutable_status());
  if (piece.ok()) *answer.mutable_values()->mutable_piece() = *std::move(piece);
  return pipe_.Send(answer);
}

}  // namespace muster::executor
