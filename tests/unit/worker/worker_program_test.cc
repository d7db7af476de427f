// Users' programs in WorkerCore.
#include <fmt/core.h>

#include "common/base/version.h"
#include "tests/unit/worker/fixture.h"

namespace muster::worker {
namespace {

using namespace std::chrono_literals;
using Event = v1::ExecutorEvent;

struct Programs : WorkerFixture {
  std::uint64_t StartProgram(std::uint64_t incarnation, std::uint64_t epoch = 1) {
    v1::Command command;
    command.set_id(next_command++);
    v1::StartExecutor& start = *command.mutable_start_executor();
    start.mutable_plan()->set_job_id("j");
    start.mutable_plan()->set_epoch(epoch);
    start.mutable_plan()->set_view(1);
    start.mutable_spec()->mutable_program()->set_sha256("abc");
    start.mutable_spec()->mutable_program()->add_arguments("--epochs");
    start.mutable_program()->set_incarnation(incarnation);
    start.mutable_program()->set_closures_at_a_time(2);
    core.OnCommand(StreamId(7), command);
    return command.id();
  }
  std::uint64_t CheckProgram() {
    v1::Command command;
    command.set_id(next_command++);
    v1::JobSpec& spec = *command.mutable_check_job()->mutable_spec();
    spec.set_name("words");
    spec.mutable_program()->set_sha256("abc");
    core.OnCommand(StreamId(7), command);
    return command.id();
  }
  void Fetched() { core.OnFetched("abc", std::string("/cache/abc"), FileKind::kProgram); }
  ProcessId Last() const { return io.programs.back().process; }
  void ProgramReady(ProcessId process, const Status& status = Ok()) {
    v1::FromProgram message;
    v1::ProgramReady& ready = *message.mutable_ready();
    ready.mutable_status()->set_code(static_cast<int>(status.code()));
    ready.mutable_status()->set_message(Message(status));
    ready.set_functions(77);
    ready.set_function_count(3);
    ready.set_abi(abi);
    ready.mutable_endpoint()->set_tcp_address("127.0.0.1:5");
    core.OnProgram(process, message);
  }
  std::string abi = fmt::format("muster {} x86_64", Version());
  void Pulse(ProcessId process, std::uint64_t ended, std::uint64_t closure = 0) {
    v1::FromProgram message;
    v1::ProgramPulse& pulse = *message.mutable_pulse();
    pulse.set_ended(ended);
    if (closure > 0) {
      pulse.add_running()->set_closure(closure);
      pulse.mutable_running(0)->set_attempt(closure);
    }
    core.OnProgram(process, message);
  }
  ProcessId ServeProgram(std::uint64_t incarnation) {
    StartProgram(incarnation);
    Fetched();
    ProgramReady(Last());
    return Last();
  }
  // Second by second, with a pulse each; what the pulse says stays as it is.
  void Live(ProcessId process, Millis time, std::uint64_t ended, std::uint64_t closure) {
    for (Millis passed{0}; passed < time; passed += 1s) {
      Pulse(process, ended, closure);
      scheduler.Advance(1s);
    }
  }
  const v1::CommandResult& Reply(std::uint64_t command) const {
    for (const auto& [stream, result] : io.replies) {
      if (result.command_id() == command) return result;
    }
    FAIL("no reply");
    return io.replies.front().second;
  }
};

TEST_CASE_METHOD(Programs,
                 "a program's executor is the user's file, and is announced with its place",
                 "[worker][unit]") {
  const auto command = StartProgram(5);
  CHECK(io.fetches == std::vector<std::string>{"abc"});
  CHECK(io.fetched == FileKind::kProgram);
  Fetched();
  REQUIRE(io.programs.size() == 1);
  const FakeIo::Program& program = io.programs[0];
  CHECK(program.path == "/cache/abc");
  CHECK(program.spec.arguments(0) == "--epochs");
  CHECK(program.start.role() == v1::PROGRAM_ROLE_EXECUTOR);
  CHECK(program.start.job_id() == "j");
  CHECK(program.start.task().type() == "worker");
  CHECK(program.start.task().index() == 2);
  CHECK(program.start.epoch() == 1);
  CHECK(program.start.incarnation() == 5);
  CHECK(program.start.threads() == 3);
  CHECK(program.start.closures_at_a_time() == 2);
  CHECK(io.replies.empty());

  ProgramReady(Last());

  CHECK(Code(command) == StatusCode::kOk);
  REQUIRE(Events().size() == 2);
  CHECK(Events()[0].kind() == Event::KIND_STARTED);
  CHECK(Events()[1].kind() == Event::KIND_READY);
  CHECK(Events()[1].incarnation() == 5);
  CHECK(Events()[1].endpoint().tcp_address() == "host-2:5");
  CHECK(io.launched.empty());
}

TEST_CASE_METHOD(Programs, "an executor with a higher number replaces the one that is there",
                 "[worker][unit]") {
  const ProcessId first = ServeProgram(5);
  CHECK(Code(StartProgram(5)) == StatusCode::kOk);
  CHECK(io.programs.size() == 1);

  const auto newer = StartProgram(6);
  Fetched();

  CHECK(io.killed.contains(first));
  REQUIRE(io.programs.size() == 2);
  ProgramReady(first);  // too late
  CHECK(Code(newer) == StatusCode::kUnknown);
  ProgramReady(Last());
  CHECK(Code(newer) == StatusCode::kOk);
  CHECK(Code(StartProgram(5)) == StatusCode::kAborted);
  CHECK(Code(StartProgram(7, 0)) == StatusCode::kAborted);  // an older epoch
}

TEST_CASE_METHOD(Programs, "the end of a program's executor is told, and its number is over",
                 "[worker][unit]") {
  const ProcessId process = ServeProgram(5);
  core.OnLine(process, 1, "about to read address 0");

  core.OnExited(process, "signal SIGSEGV", false, std::vector{ClosureId(17)});

  REQUIRE(Events().size() == 3);
  CHECK(Events()[2].kind() == Event::KIND_EXITED);
  CHECK(Events()[2].incarnation() == 5);
  CHECK(Events()[2].how() == "signal SIGSEGV");
  CHECK(Events()[2].running_known());
  CHECK(Events()[2].running(0) == 17);
  CHECK(Events()[2].last_lines(0) == "about to read address 0");
  CHECK(Code(StartProgram(5)) == StatusCode::kAborted);
  StartProgram(6);
  Fetched();
  CHECK(io.programs.size() == 2);
}

TEST_CASE_METHOD(Programs, "exit is the end of a program by its own code whatever its exit code",
                 "[worker][unit]") {
  ServeProgram(5);
  SECTION("a signal that others send") {
    core.OnExited(Last(), "signal SIGKILL", true);
    CHECK(Events().back().from_outside());
  }
  SECTION("exit code 0") {
    core.OnExited(Last(), "exit code 0", true);
    CHECK_FALSE(Events().back().from_outside());
  }
}

TEST_CASE_METHOD(Programs, "an executor that was never ready may be asked for again",
                 "[worker][unit]") {
  const auto command = StartProgram(5);
  Fetched();
  ProgramReady(Last(), FailedPrecondition("no folder for its socket"));
  CHECK(Code(command) == StatusCode::kFailedPrecondition);
  CHECK(io.killed.contains(Last()));
  const auto again = StartProgram(5);
  Fetched();
  core.OnExited(Last(), "signal SIGKILL", true);
  CHECK(Code(again) == StatusCode::kUnavailable);

  StartProgram(5);
  Fetched();

  CHECK(io.programs.size() == 3);
}

TEST_CASE_METHOD(Programs, "a stopped executor is killed, and a stop of the past is refused",
                 "[worker][unit]") {
  const ProcessId process = ServeProgram(5);
  v1::Command stop;
  stop.set_id(next_command++);
  stop.mutable_stop_executor()->set_job_id("j");
  stop.mutable_stop_executor()->set_epoch(0);
  stop.mutable_stop_executor()->set_view(1);

  core.OnCommand(StreamId(7), stop);

  CHECK(io.killed.contains(process));
  CHECK(Code(stop.id()) == StatusCode::kOk);
  v1::Heartbeat heartbeat;
  core.FillHeartbeat(heartbeat);
  CHECK(heartbeat.executor_pid() == 0);
}

TEST_CASE_METHOD(Programs, "what an executor did after its last pulse is counted at its end",
                 "[worker][unit]") {
  const ProcessId process = ServeProgram(5);
  Pulse(process, 10);
  const auto counted = [this] {
    v1::Heartbeat heartbeat;
    core.FillHeartbeat(heartbeat);
    return heartbeat.closures_done();
  };

  SECTION("of one that ends by itself") {
    core.OnExited(process, "signal SIGSEGV", false, std::nullopt, 17);
    CHECK(counted() == 17);
  }
  SECTION("of one that is killed because its job has ended") {
    v1::Command stop;
    stop.set_id(next_command++);
    stop.mutable_stop_executor()->set_job_id("j");
    core.OnCommand(StreamId(7), stop);
    REQUIRE(io.killed.contains(process));
    CHECK(counted() == 10);
    core.OnExited(process, "signal SIGKILL", true, std::nullopt, 17);
    CHECK(counted() == 17);
  }
  SECTION("of one of which it is not known what it did") {
    core.OnExited(process, "signal SIGKILL", true);
    CHECK(counted() == 10);
  }
  // The next one counts from its own beginning.
  const std::uint64_t before = counted();
  const ProcessId next = ServeProgram(6);
  Pulse(next, 4);
  CHECK(counted() == before + 4);
}

TEST_CASE_METHOD(Programs, "a probe's answer is the check's, and its process goes",
                 "[worker][unit]") {
  const auto command = CheckProgram();
  Fetched();
  REQUIRE(io.programs.size() == 1);
  CHECK(io.programs[0].start.role() == v1::PROGRAM_ROLE_PROBE);
  CHECK(io.programs[0].start.job_name() == "words");

  ProgramReady(Last());

  CHECK(Code(command) == StatusCode::kOk);
  CHECK(Reply(command).check().functions() == 77);
  CHECK(Reply(command).check().function_count() == 3);
  CHECK(Reply(command).check().abi() == abi);
  CHECK(io.killed.contains(Last()));
}

TEST_CASE_METHOD(Programs, "a program of another release is refused, at its probe and as executor",
                 "[worker][unit]") {
  abi = "muster 0.0.1 torch 2.5.1 x86_64";
  const auto told = [&](std::uint64_t command) {
    CHECK(Code(command) == StatusCode::kInvalidArgument);
    CHECK(Reply(command).status().message().starts_with(fmt::format(
        "the program was built with Muster 0.0.1, and this worker is of Muster {}: ", Version())));
  };
  const auto check = CheckProgram();
  Fetched();
  ProgramReady(Last());
  told(check);

  const auto start = StartProgram(1);
  Fetched();
  ProgramReady(Last());
  told(start);

  // Not of another patch of this one: running jobs go on when a worker is upgraded.
  const std::string release(Version().substr(0, Version().rfind('.')));
  abi = fmt::format("muster {}.99 torch 2.5.1 x86_64", release);
  const auto patched = CheckProgram();
  Fetched();
  ProgramReady(Last());
  CHECK(Code(patched) == StatusCode::kOk);

  // What it has to say itself comes first.
  const auto fails = StartProgram(2);
  Fetched();
  ProgramReady(Last(), NotFound("no weights"));
  CHECK(Code(fails) == StatusCode::kNotFound);
}

TEST_CASE_METHOD(Programs, "a probe without a word is told as what its program or host lacks",
                 "[worker][unit]") {
  struct Case {
    std::string line, how;
    StatusCode code;
    std::string says;
  };
  const auto one = GENERATE(values<Case>({
      {"words: error while loading shared libraries: libfoo.so.1: cannot open shared object file: "
       "No such file or directory",
       "exit code 127", StatusCode::kFailedPrecondition, "the shared library libfoo.so.1"},
      {"words: /lib/libc.so.6: version `GLIBC_2.99' not found (required by words)", "exit code 1",
       StatusCode::kFailedPrecondition, "newer libraries than this host has"},
      {"words: symbol lookup error: words: undefined symbol: _ZN6muster4initEv", "exit code 127",
       StatusCode::kFailedPrecondition, "newer libraries than this host has"},
      {"hello", "exit code 0", StatusCode::kInvalidArgument, "without calling muster::init"},
      {"hello", "exit code 0", StatusCode::kInvalidArgument,
       "multi_worker_mirrored runs a program that trains in step, --strategy none any command): "
       "hello"},
      {"", "signal SIGSEGV", StatusCode::kInvalidArgument,
       "crashed (signal SIGSEGV) before it called muster::init"},
  }));
  const auto command = CheckProgram();
  Fetched();
  if (!one.line.empty()) core.OnLine(Last(), 1, one.line);

  core.OnExited(Last(), one.how, false);

  CHECK(Code(command) == one.code);
  const std::string& message = Reply(command).status().message();
  CHECK(message.find(one.says) != std::string::npos);
}

TEST_CASE_METHOD(Programs, "a probe that runs on is ended at the check's limit", "[worker][unit]") {
  const auto command = CheckProgram();
  Fetched();

  scheduler.Advance(59s);
  CHECK(Code(command) == StatusCode::kUnknown);
  scheduler.Advance(2s);

  CHECK(Code(command) == StatusCode::kInvalidArgument);
  const std::string& message = Reply(command).status().message();
  CHECK(message.find("60 s without calling muster::init") != std::string::npos);
  CHECK(message.find("--strategy none") != std::string::npos);
  CHECK(io.killed.contains(Last()));
}

TEST_CASE_METHOD(Programs, "a program that does not arrive or start is the answer",
                 "[worker][unit]") {
  const auto check = CheckProgram();
  core.OnFetched("abc", NotFound("no such file"), FileKind::kProgram);
  CHECK(Code(check) == StatusCode::kNotFound);
  io.launch_error = FailedPrecondition("this host may not run files of its cache");

  const auto start = StartProgram(1);
  Fetched();

  CHECK(Code(start) == StatusCode::kFailedPrecondition);
  CHECK(Reply(start).status().message().starts_with("this host may not"));
}

TEST_CASE_METHOD(Programs, "an executor that stands still in a closure is killed as stuck",
                 "[worker][unit]") {
  const ProcessId process = ServeProgram(5);
  Live(process, 120s, 10, 0);  // with nothing to do it may stand as long as it likes
  CHECK_FALSE(io.killed.contains(process));
  for (std::uint64_t closure = 1; closure < 60; ++closure) Live(process, 2s, 10 + closure, closure);
  CHECK_FALSE(io.killed.contains(process));

  Live(process, 45s, 70, 60);

  CHECK(io.killed.contains(process));
  REQUIRE(Events().size() == 3);
  CHECK(Events()[2].kind() == Event::KIND_EXITED);
  CHECK(Events()[2].stuck());
  CHECK(Events()[2].from_outside());
  CHECK(Events()[2].how().find("closure 60 got nowhere for 30 s") != std::string::npos);
  v1::Heartbeat heartbeat;
  core.FillHeartbeat(heartbeat);
  CHECK(heartbeat.closures_done() == 70);
}

TEST_CASE_METHOD(Programs, "an executor without a pulse is killed, whatever it had last",
                 "[worker][unit]") {
  const ProcessId process = ServeProgram(5);
  Live(process, 10s, 1, 0);

  scheduler.Advance(30s);
  CHECK_FALSE(io.killed.contains(process));
  scheduler.Advance(20s);

  CHECK(io.killed.contains(process));
  CHECK(Events().back().how().find("it got nowhere") != std::string::npos);
}

TEST_CASE_METHOD(Programs, "draining lets an executor end what runs, and no longer",
                 "[worker][unit]") {
  const ProcessId process = ServeProgram(5);
  Pulse(process, 0, 1);
  bool drained = false;

  core.Drain(60s, [&] { drained = true; });

  REQUIRE(io.to_programs.size() == 1);
  CHECK(io.to_programs[0].second.has_stop());
  Pulse(process, 0, 1);
  CHECK_FALSE(drained);
  Pulse(process, 1);
  CHECK(drained);
  CHECK(io.killed.contains(process));
  CHECK(Code(StartProgram(6)) == StatusCode::kUnavailable);
}

TEST_CASE_METHOD(Programs, "draining ends at its limit though a closure runs", "[worker][unit]") {
  const ProcessId process = ServeProgram(5);
  bool drained = false;
  core.Drain(10s, [&] { drained = true; });
  CHECK_FALSE(drained);  // what runs is not known before the next pulse
  Live(process, 5s, 0, 1);
  CHECK_FALSE(drained);

  Live(process, 6s, 0, 1);

  CHECK(drained);
  CHECK(io.killed.contains(process));
}

TEST_CASE_METHOD(Programs, "a program that arrives while its worker drains is not probed",
                 "[worker][unit]") {
  ServeProgram(5);
  const auto command = CheckProgram();
  core.Drain(60s, [] {});

  Fetched();

  CHECK(io.programs.size() == 1);
  CHECK(Code(command) == StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::worker
