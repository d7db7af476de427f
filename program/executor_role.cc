#include "program/executor_role.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

#include "dispatch/executor.h"
#include "dispatch/functions.h"
#include "program/executor_endpoint.h"
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/base/version.h"
#include "common/messages/status_proto.h"

namespace muster::program::internal {
namespace {

constexpr std::chrono::seconds kPulse{1};

// User code may hold any lock and run on: no destructor of its own is waited for.
[[noreturn]] void EndNow(int code) {
  (void)std::fflush(stderr);
  ::_exit(code);
}

void SendPulse(process::MessagePipe& pipe, const dispatch::RunningTable& running) {
  v1::FromProgram message;
  *message.mutable_pulse() = PulseOf(running);
  (void)pipe.Send(message);  // the other thread learns that the daemon has gone
}

// A closure that calls exit() is not to end those beside it by what is destroyed under them: their
// errors would be their own, and the program's. Called before all that was registered so far.
void EndAtOnceAtExit() {
  (void)::on_exit(
      [](int code, void*) {
        std::cout.flush();
        (void)std::fflush(nullptr);
        ::_exit(code);
      },
      nullptr);
}

// The daemon says nothing to an executor but that it ends, by closing the pipe, or that it is to
// take no more.
void ObeyDaemon(process::MessagePipe& pipe, dispatch::Executor& executor) {
  for (;;) {
    v1::ToProgram message;
    const Status status = pipe.Receive(message);
    if (!status.ok()) EndNow(0);
    if (message.has_stop()) executor.Drain();
  }
}

// Killed rather than ended by its own code: the closure that goes on is no worse than any.
void EndStuck(const std::string& what) {
  fmt::print(stderr, "muster: this executor ends and another takes its place: {}\n", what);
  (void)std::fflush(stderr);
  (void)std::raise(SIGKILL);
}

// The heap and other memory of its own, not what it shares with parameter servers. What does not
// get any throws std::bad_alloc, which is a closure's own error.
Status LimitMemory(std::uint64_t bytes) {
  if (bytes == 0) return Ok();
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  if (::setrlimit(RLIMIT_DATA, &limit) != 0) {
    return FromErrno(errno, fmt::format("a memory limit of {} bytes", bytes));
  }
  return Ok();
}

Status Serve(const v1::ProgramStart& start, process::MessagePipe& pipe, const Options& options) {
  MUSTER_TRY(LimitMemory(start.memory_bytes()));
  v1::FromProgram message;
  v1::ProgramReady& ready = *message.mutable_ready();
  ready = Describe(options);
  MUSTER_TRY_ASSIGN(const std::vector<net::Listener> listeners, ListenForDrivers(start));
  MUSTER_TRY_ASSIGN(
      const std::unique_ptr<dispatch::Executor> executor,
      dispatch::Executor::Create({.identity = IdentityOf(start),
                                  .closures_at_a_time = start.closures_at_a_time(),
                                  .worker_index = static_cast<std::uint32_t>(start.task().index()),
                                  .running_file = RunningFile(start),
                                  .on_stuck = EndStuck},
                                 dispatch::ProgramFunctions()));
  MUSTER_TRY(dispatch::BuildProgramObjects());
  EndAtOnceAtExit();
  *ready.mutable_endpoint() = EndpointOf(listeners, start);
  MUSTER_TRY(pipe.Send(message));
  const std::jthread daemon([&] { ObeyDaemon(pipe, *executor); });
  const std::jthread pulse([&] {
    for (;; std::this_thread::sleep_for(kPulse)) SendPulse(pipe, executor->running());
  });
  const Status status = executor->Serve(listeners);
  fmt::print(stderr, "muster: this executor cannot go on: {}\n", ToString(status));
  EndNow(1);
}

}  // namespace

v1::ProgramReady Describe(const Options& options) {
  v1::ProgramReady ready;
  const dispatch::FunctionTable& functions = dispatch::ProgramFunctions();
  ready.set_functions(functions.hash());
  ready.set_function_count(static_cast<std::uint32_t>(functions.size()));
  utsname machine{};
  (void)::uname(&machine);
  ready.set_abi(fmt::format(
      "muster {}{}{} {}", options.version.empty() ? Version() : std::string_view(options.version),
      options.torch_version.empty() ? "" : " torch ", options.torch_version, machine.machine));
  return ready;
}

void ServeAsExecutor(const v1::ProgramStart& start, process::MessagePipe& pipe,
                     const Options& options) {
  if (options.use_threads && start.threads() > 0) options.use_threads(start.threads());
  const Status status = Serve(start, pipe, options);
  v1::FromProgram message;
  SetStatus(status, *message.mutable_ready()->mutable_status());
  (void)pipe.Send(message);
  fmt::print(stderr, "muster: this executor cannot start: {}\n", ToString(status));
  EndNow(1);
}

void AnswerAsProbe(process::MessagePipe& pipe, const Options& options) {
  v1::FromProgram message;
  *message.mutable_ready() = Describe(options);
  (void)std::fflush(stdout);
  EndNow(pipe.Send(message).ok() ? 0 : 1);
}

}  // namespace muster::program::internal
