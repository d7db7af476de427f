#include "program/runtime.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "program/driver_options.h"
#include "program/driver_runtime.h"
#include "program/evaluator_role.h"
#include "program/executor_role.h"
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "common/base/environment.h"
#include "common/base/shell_word.h"
#include "common/base/thrown.h"
#include "common/base/utf8.h"
#include "common/messages/status_proto.h"
#include "common/process/message_pipe.h"
#include "muster/v1/program.pb.h"

namespace muster::program {
namespace {

constexpr const char* kDescriptor = "MUSTER_PROGRAM_FD";
// A daemon writes its first message when it has started the process.
constexpr Millis kFirstMessage{60'000};
// The most of what an exception says: it stands in the job's record, which every list of jobs has.
constexpr std::size_t kLongestWhat = 16'384;
constexpr int kUsage = 2;
constexpr int kFailed = 1;

// Threads of the runtime's, and of the user's, may outlive main(): nothing of this is destroyed.
struct Process {
  explicit Process(int descriptor) : pipe(descriptor) {}
  // Not so in what it has forked, which has none of its threads, and whose end is not main()'s.
  bool IsThisOne() const { return pid == ::getpid(); }
  const pid_t pid = ::getpid();
  process::MessagePipe pipe;
  v1::ProgramStart start;
  std::unique_ptr<internal::DriverRuntime> driver;
  std::unique_ptr<internal::EvaluatorRuntime> evaluator;
};
Process* process_of_program = nullptr;
std::terminate_handler earlier_handler = nullptr;

[[noreturn]] void EndWithoutCluster(int argc, char** argv) {
  std::string line = argc > 0 ? ShellWord(argv[0]) : "program";
  for (int i = 1; i < argc; ++i) line += " " + ShellWord(argv[i]);
  fmt::print(stderr, "{} runs on a cluster:\n  muster submit --strategy parameter_server -- {}\n",
             argc > 0 ? argv[0] : "this program", line);
  std::exit(kUsage);
}

[[noreturn]] void Fail(const Status& status) {
  fmt::print(stderr, "muster: {}\n", ToString(status));
  (void)std::fflush(stderr);
  ::_exit(kFailed);
}

Result<int> Descriptor(const char* text) {
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || number < 0 || number > 1'000'000 ||
      ::fcntl(static_cast<int>(number), F_GETFD) < 0) {
    return InvalidArgument("{}={} is no open descriptor: only a daemon of the cluster sets it",
                           kDescriptor, text);
  }
  // Children of the program must not keep its daemon waiting for its end.
  (void)::fcntl(static_cast<int>(number), F_SETFD, FD_CLOEXEC);
  return static_cast<int>(number);
}

std::string Beginning(std::string_view what) {
  if (what.size() <= kLongestWhat) return std::string(what);
  return fmt::format("{} ... ({} bytes in all)", Utf8Beginning(what, kLongestWhat), what.size());
}

// What leaves main() without being caught is told to the daemon before the process aborts.
[[noreturn]] void TellAndTerminate() {
  Status status = Internal("std::terminate was called");
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      status = Internal("an exception left main(): {}", Beginning(error.what()));
    } catch (...) {
      status = Internal("an exception left main(), and is no std::exception{}",
                        Beginning(TextOfThrown()));
    }
  }
  if (process_of_program->IsThisOne()) {
    if (Runtime* driver = Driver()) driver->End(status);
    if (process_of_program->evaluator != nullptr) process_of_program->evaluator->End(status);
  }
  (void)std::fflush(stdout);
  if (earlier_handler != nullptr) earlier_handler();
  std::abort();
}

// Makes this process the driver of its job, and sees to it that its end is told.
void BecomeDriver(Process& process, const Options& options) {
  auto settings = internal::DriverOptions(ProcessEnvironment());
  if (!settings.ok()) {
    v1::FromProgram message;
    SetStatus(settings.status(), *message.mutable_ready()->mutable_status());
    (void)process.pipe.Send(message);
    Fail(settings.status());
  }
  process.driver =
      std::make_unique<internal::DriverRuntime>(process.start, process.pipe, *std::move(settings));
  if (const Status begun = process.driver->Begin(options); !begun.ok()) Fail(begun);
  earlier_handler = std::set_terminate(TellAndTerminate);
  (void)std::atexit([] {
    if (process_of_program->IsThisOne()) process_of_program->driver->EndAtExit();
  });
}

void BecomeEvaluator(Process& process, const Options& options) {
  process.evaluator = std::make_unique<internal::EvaluatorRuntime>(process.pipe);
  if (const Status begun = process.evaluator->Begin(options); !begun.ok()) Fail(begun);
  earlier_handler = std::set_terminate(TellAndTerminate);
  (void)std::atexit([] {
    if (process_of_program->IsThisOne()) process_of_program->evaluator->End(Ok());
  });
}

}  // namespace

// Where the daemon's pipe says so, this process becomes an executor or a probe and never returns.
void Init(int argc, char** argv, const Options& options) {
  if (process_of_program != nullptr) return;
  const char* text = std::getenv(kDescriptor);
  if (text == nullptr) EndWithoutCluster(argc, argv);
  const Result<int> descriptor = Descriptor(text);
  if (!descriptor.ok()) Fail(descriptor.status());
  (void)::unsetenv(kDescriptor);  // what it starts is no program of the cluster
  // Its lines arrive when they are written, though no terminal takes them.
  (void)std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  process_of_program = new Process(*descriptor);
  Process& process = *process_of_program;
  v1::ToProgram first;
  if (const Status got = process.pipe.Receive(first, kFirstMessage); !got.ok()) {
    Fail(Annotate(got, "the daemon that started this program said nothing"));
  }
  process.start = first.start();
  switch (process.start.role()) {
    case v1::PROGRAM_ROLE_DRIVER:
      return BecomeDriver(process, options);
    case v1::PROGRAM_ROLE_EXECUTOR:
      internal::ServeAsExecutor(process.start, process.pipe, options);
    case v1::PROGRAM_ROLE_PROBE:
      internal::AnswerAsProbe(process.pipe, options);
    case v1::PROGRAM_ROLE_EVALUATOR:
      return BecomeEvaluator(process, options);
    default:
      Fail(
          Unimplemented("the daemon wants a role ({}) that this program does not know: they are of "
                        "different releases",
                        static_cast<int>(process.start.role())));
  }
}

bool Started() { return process_of_program != nullptr; }

const v1::ProgramStart& Start() {
  MUSTER_INVARIANT(process_of_program != nullptr);
  return process_of_program->start;
}

Runtime* Driver() {
  return process_of_program == nullptr ? nullptr : process_of_program->driver.get();
}

Evaluator* OwnEvaluator() {
  return process_of_program == nullptr ? nullptr : process_of_program->evaluator.get();
}

}  // namespace muster::program
