#include "strategy/testing/multi_process.h"

#include <csignal>
#include <map>
#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kProgram = MUSTER_TEST_PROGRAMS "/processes";

MultiProcessOptions Two(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), kProgram);
  return {.command = std::move(arguments), .cluster = {{"worker", 2}}, .print = false};
}

// The error that it throws.
template <class Function>
Error ErrorOf(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kOk, "nothing was thrown");
}

TEST_CASE("each process of a run has a TF_CONFIG with an address of its own",
          "[multi_process][spec][MPR-01]") {
  MultiProcessRun run(
      {.command = {kProgram, "config"}, .cluster = {{"chief", 1}, {"worker", 2}}, .print = false});
  const MultiProcessResult result = run.join();

  REQUIRE(result.values.size() == 3);
  std::set<std::string> addresses;
  for (const auto& [task, values] : result.values) {
    CAPTURE(task, values.at(0));
    CHECK(result.exits.at(task).ok());
    for (const std::string other : {"chief:0", "worker:0", "worker:1"}) {
      CHECK(values.at(0).find(run.address(other)) != std::string::npos);
    }
    addresses.insert(run.address(task));
    CHECK(values.at(0).find("\"type\":\"" + task.substr(0, task.find(':'))) != std::string::npos);
  }
  CHECK(addresses.size() == 3);
}

TEST_CASE("a run's processes meet at a barrier, and one that has ended is named to the others",
          "[multi_process][spec][MPR-01]") {
  MultiProcessRun run(Two({"barrier", "3"}));
  const MultiProcessResult result = run.join();
  CHECK(result.output.at("worker:0") == "passed 1\npassed 2\npassed 3\n");
  CHECK(result.output.at("worker:1") == "passed 1\npassed 2\npassed 3\n");

  MultiProcessRun broken(Two({"broken-barrier"}));
  const Error error = ErrorOf([&] { broken.join(); });
  CHECK(error.message() ==
        "worker:0 ended by exit code 4: barrier: worker:1 has ended and does "
        "not come");
}

TEST_CASE("a task that has ended is named at a barrier while others are still on their way",
          "[multi_process]") {
  MultiProcessOptions options = Two({"broken-barrier"});
  options.cluster = {{"worker", 3}};
  MultiProcessRun run(options);
  CHECK(run.wait("worker:0", seconds(60)).code == 4);
  CHECK(run.output("worker:0") == "barrier: worker:1 has ended and does not come\n");
  CHECK(run.pid("worker:2") != 0);
}

TEST_CASE("values of several threads come whole, and lines that are none of the run's are nothing",
          "[multi_process]") {
  const auto values_of = [](const std::string& what) {
    MultiProcessOptions options = Two({what});
    options.cluster = {{"worker", 1}};
    return MultiProcessRun(options).join().values.at("worker:0");
  };
  std::map<std::string, int> times;
  for (const std::string& value : values_of("threads")) ++times[value];
  CHECK(times.size() == 4);
  for (const auto& [value, count] : times) {
    CHECK(count == 8);
    CHECK(value.size() == 256 << 10);
    CHECK(value.find_first_not_of(value[0]) == std::string::npos);
  }
  CHECK(values_of("stray") == std::vector<std::string>{"whole"});
}

TEST_CASE("a killed process is the run's error, with its signal, and can be started again",
          "[multi_process][spec][MPR-01]") {
  MultiProcessRun run(Two({"wait"}));
  REQUIRE(run.wait_for_output("worker:1", "begins", seconds(60)));
  const int pid = run.pid("worker:1");
  run.kill("worker:1", SIGKILL, true);
  CHECK(run.wait("worker:1", seconds(60)).signal == SIGKILL);
  run.start("worker:1");
  CHECK(run.wait_for_output("worker:1", "begins\nbegins", seconds(60)));
  CHECK(run.pid("worker:1") != pid);
  CHECK(ErrorOf([&] { run.start("worker:1"); }).code() == ErrorCode::kFailedPrecondition);

  run.kill("worker:1", SIGKILL);
  run.kill("worker:0", SIGTERM, true);
  const Error error = ErrorOf([&] { run.join(); });
  CHECK(error.code() == ErrorCode::kInternal);
  CHECK(error.message() == "worker:1 ended by signal SIGKILL: begins");
}

TEST_CASE("a failure is told as it was, however the task ended when it was started again",
          "[multi_process]") {
  MultiProcessRun run(Two({"wait"}));
  REQUIRE(run.wait_for_output("worker:1", "begins", seconds(60)));
  run.kill("worker:1", SIGKILL);
  (void)run.wait("worker:1", seconds(60));
  run.start("worker:1");
  REQUIRE(run.wait_for_output("worker:1", "begins\nbegins", seconds(60)));
  run.kill("worker:1", SIGTERM, true);
  run.kill("worker:0", SIGTERM, true);
  CHECK(ErrorOf([&] { run.join(); }).message() == "worker:1 ended by signal SIGKILL: begins");
}

TEST_CASE("a run restarts what fails when it is asked to", "[multi_process][spec][MPR-01]") {
  MultiProcessOptions options = Two({"wait"});
  options.restart = true;
  MultiProcessRun run(options);
  REQUIRE(run.wait_for_output("worker:0", "begins", seconds(60)));
  run.kill("worker:0");
  CHECK(run.wait_for_output("worker:0", "begins\nbegins", seconds(60)));
}

TEST_CASE("a run that is late says who has not ended and keeps what they wrote",
          "[multi_process][spec][MPR-01]") {
  MultiProcessOptions options = Two({"chief-ends", "0"});
  options.limit = milliseconds(500);
  MultiProcessRun run(options);
  const Error error = ErrorOf([&] { run.join(); });
  CHECK(error.code() == ErrorCode::kDeadlineExceeded);
  // Task 0 ends by itself, unless the machine is slower than the limit.
  CHECK(error.message().find("worker:1 had not ended after ") != std::string::npos);
  CHECK(run.result().exits.at("worker:1").signal == SIGKILL);

  MultiProcessRun wrote(Two({"wait"}));
  REQUIRE(wrote.wait_for_output("worker:1", "begins", seconds(60)));
  CHECK(ErrorOf([&] { wrote.join(milliseconds(1)); }).code() == ErrorCode::kDeadlineExceeded);
  CHECK(wrote.result().output.at("worker:1") == "begins\n");
}

TEST_CASE("nothing is started when the run's time is over, and a join in time leaves it as it was",
          "[multi_process]") {
  MultiProcessRun late(Two({"wait"}));
  CHECK(ErrorOf([&] { late.join(milliseconds(0)); }).code() == ErrorCode::kDeadlineExceeded);
  const Error error = ErrorOf([&] { late.start("worker:1"); });
  CHECK(error.code() == ErrorCode::kFailedPrecondition);
  CHECK(error.message().find("worker:1 cannot be started: the time limit") == 0);

  MultiProcessRun run(Two({"config"}));
  for (const char* task : {"worker:0", "worker:1"}) (void)run.wait(task, seconds(60));
  run.join(milliseconds(0));
  run.start("worker:1");
  CHECK(run.join().values.at("worker:1").size() == 2);
}

TEST_CASE("the longest limit that there is is none", "[multi_process]") {
  MultiProcessOptions options = Two({"chief-ends", "0"});
  options.limit = milliseconds::max();
  MultiProcessRun run(options);
  CHECK(run.wait("worker:0", milliseconds::max()).ok());
  CHECK(run.wait_for_output("worker:1", "begins", milliseconds::max()));
  run.kill("worker:1", SIGTERM, true);
  run.join(milliseconds::max());
}

TEST_CASE("a run shows what its processes write, each line behind its task's name",
          "[multi_process][spec][MPR-01]") {
  MultiProcessRun run({.command = {kProgram, "shown"}, .cluster = {{"worker", 1}}, .print = false});
  const std::string shown = run.join().output.at("worker:0");
  const std::string first = "[worker-0]: passed 1\n", second = "[worker-1]: passed 1\n";
  CAPTURE(shown);
  CHECK((shown == first + second || shown == second + first));
}

TEST_CASE("a failure counts more than the time limit", "[multi_process][spec][MPR-01]") {
  MultiProcessRun run(Two({"wait"}));
  REQUIRE(run.wait_for_output("worker:0", "begins", seconds(60)));
  run.kill("worker:0", SIGSEGV);
  CHECK(run.wait("worker:0", seconds(60)).signal == SIGSEGV);

  const Error error = ErrorOf([&] { run.join(milliseconds(1)); });
  CHECK(error.message() == "worker:0 ended by signal SIGSEGV: begins");
  CHECK(run.result().exits.at("worker:1").signal == SIGKILL);
}

TEST_CASE("the end of the chief ends the run when that was asked for",
          "[multi_process][spec][MPR-01]") {
  MultiProcessOptions options = Two({"chief-ends", "0"});
  options.end_with_chief = true;
  MultiProcessRun run(options);
  const MultiProcessResult result = run.join();
  CHECK(result.exits.at("worker:0").ok());
  CHECK(result.exits.at("worker:1").signal == SIGTERM);
}

TEST_CASE("tasks that are started after the end of the chief are a run like the first",
          "[multi_process]") {
  MultiProcessOptions options = Two({"chief-ends", "0"});
  options.end_with_chief = true;
  MultiProcessRun run(options);
  // Task 1 may have been ended before it said anything.
  const std::string before = run.join().output.at("worker:1");

  run.start("worker:1");
  REQUIRE(run.wait_for_output("worker:1", before + "begins", seconds(60)));
  run.start("worker:0");

  const MultiProcessResult result = run.join();
  CHECK(result.exits.at("worker:0").ok());
  CHECK(result.exits.at("worker:1").signal == SIGTERM);
}

TEST_CASE("functions of a program run in processes of it, and what they return is the run's",
          "[multi_process][spec][MPR-01]") {
  const auto output_of = [](const std::string& name) {
    MultiProcessRun run(
        {.command = {kProgram, "function", name}, .cluster = {{"worker", 1}}, .print = false});
    (void)run.wait("worker:0", seconds(60));
    return run.output("worker:0");
  };
  CHECK(output_of("greet") == "worker:0: hello from 0\nworker:1: hello from 1\n");
  CHECK(output_of("refuse").find("ended by exit code 1: refuse: task ") != std::string::npos);
  CHECK(output_of("absent").find("no function \"absent\" is registered") != std::string::npos);
}

TEST_CASE("a run refuses what it cannot be", "[multi_process][spec]") {
  const auto code_of = [](MultiProcessOptions options) {
    return ErrorOf([&] { MultiProcessRun run(std::move(options)); }).code();
  };
  CHECK(code_of({}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({.command = {"true"}, .function = "f"}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({.command = {"true"}, .cluster = {}}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({.command = {"true"}, .cluster = {{"worker", -1}}}) == ErrorCode::kInvalidArgument);
  CHECK(code_of({.command = {"true"}, .cluster = {{"ps", 2}}, .end_with_chief = true}) ==
        ErrorCode::kInvalidArgument);
  CHECK(code_of({.command = {"/no/such/program"}}) == ErrorCode::kNotFound);
  CHECK(ErrorOf([] { process_barrier(); }).code() == ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster
