#include "services/executor/closure_server.h"

#include <cstdio>

#include "program/executor_endpoint.h"
#include "program/model_functions.h"
#include <fmt/core.h>

#include "common/base/trouble.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/executor.pb.h"
#include "worker/engine/runtime.h"

namespace muster::executor {
namespace {

constexpr std::chrono::seconds kPulse{1};

bool Parse(google::protobuf::MessageLite& message, std::span<const std::byte> bytes) {
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

}  // namespace

Result<std::unique_ptr<ClosureServer>> ClosureServer::Start(const v1::ExecutorStart& start,
                                                            JobRun& run,
                                                            process::MessagePipe& pipe) {
  std::unique_ptr<ClosureServer> server(new ClosureServer(run, pipe));
  MUSTER_TRY(server->Open(start));
  return server;
}

Status ClosureServer::Open(const v1::ExecutorStart& start) {
  const v1::ProgramStart& program = start.start().program();
  threads_ = start.threads();
  functions_ = program::ModelFunctions([this](auto& context) { return Call(context); },
                                       [this](auto& context) { return Call(context); });
  MUSTER_TRY_ASSIGN(listeners_, program::ListenForDrivers(program));
  endpoint_ = program::EndpointOf(listeners_, program);
  // A step in the middle is waited for, however long it takes, though its driver is gone.
  MUSTER_TRY_ASSIGN(
      executor_,
      dispatch::Executor::Create({.identity = program::IdentityOf(program),
                                  .worker_index = start.worker_index(),
                                  .running_file = program::RunningFile(program),
                                  .on_arrival =
                                      [this](std::uint32_t, std::span<const std::byte> arguments) {
                                        v1::ClosureAssignment assignment;
                                        if (Parse(assignment, arguments))
                                          run_.Expect(assignment.closure());
                                      }},
                                 functions_));
  server_ = std::thread([this] {
    const Status status = executor_->Serve(listeners_);
    if (status.ok()) return;
    // Nobody can reach it any more: its daemon starts another.
    fmt::print(stderr, "error: this executor cannot go on: {}\n", ToString(status));
    pipe_.Shutdown();
  });
  return Ok();
}

ClosureServer::~ClosureServer() {
  {
    const MutexLock lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  if (pulse_.joinable()) pulse_.join();
  if (executor_ != nullptr) executor_->Stop();
  if (server_.joinable()) server_.join();
}

Status ClosureServer::Call(dispatch::ClosureContext& context) {
  // A session of each driver has threads of its own.
  thread_local bool prepared = false;
  if (!std::exchange(prepared, true)) engine::SetThreads(threads_);
  v1::ClosureAssignment assignment;
  if (!Parse(assignment, context.arguments())) {
    return InvalidArgument("what the driver sent is no closure of a model");
  }
  running_ = assignment.closure().id();
  const Result<v1::ClosureResult> result = run_.Run(assignment, context.attempt());
  if (!result.ok()) {
    fmt::print(stderr, "closure {}: {}\n", assignment.closure().id(), Message(result.status()));
    if (IsTransient(result.status().code())) {
      context.Blame(dispatch::Origin::kWorker, dispatch::Phase::kRun, "");
    }
    return result.status();
  }
  context.value().resize(result->ByteSizeLong());
  result->SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(context.value().data()));
  return Ok();
}

void ClosureServer::Drain() {
  draining_ = true;
  executor_->Drain();
}

void ClosureServer::BeginPulse() {
  pulse_ = std::thread([this] { Pulse(); });
}

// Where another executor has the closure, its daemon is to see this one's part of it as well: one
// that stands still in its data would hold up all members, and who watches those sees that they
// wait. A drain waits for closures alone: the others make the step without it.
void ClosureServer::AddPart(v1::ProgramPulse& pulse) const {
  const Steps::Part part = run_.part();
  if (part.step == 0 || pulse.running_size() > 0 || draining_) return;
  v1::RunningClosure& one = *pulse.add_running();
  one.set_closure(part.step);
  one.set_attempt(part.number);
}

// Until the end; that of the daemon is noticed elsewhere.
void ClosureServer::Pulse() {
  for (;;) {
    v1::FromExecutor message;
    v1::ProgramPulse& pulse = *message.mutable_pulse();
    pulse = program::PulseOf(executor_->running());
    for (v1::RunningClosure& one : *pulse.mutable_running()) one.set_closure(running_);
    AddPart(pulse);
    (void)pipe_.Send(message);
    const auto next = std::chrono::steady_clock::now() + kPulse;
    const MutexLock lock(mutex_);
    while (!over_ && changed_.wait_until(mutex_, next)) {
    }
    if (over_) return;
  }
}

}  // namespace muster::executor
