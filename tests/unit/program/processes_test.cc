// Driver, executors and probe as real processes; the test plays their daemons.
#include <csignal>
#include <cstdlib>

#include <unistd.h>

#include "tests/support/environment_variables.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/program/cluster.h"

namespace muster::program {
namespace {

std::uintmax_t SizeOf(const std::string& file) {
  std::error_code none_yet;
  const std::uintmax_t size = std::filesystem::file_size(file, none_yet);
  return none_yet ? 0 : size;
}

template <class Met>
bool AwaitTrue(Met met) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!met()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::usleep(1'000);
  }
  return true;
}

// Until that many executions have begun.
bool AwaitSize(const std::string& file, std::uintmax_t size) {
  return AwaitTrue([&] { return SizeOf(file) >= size; });
}

TEST_CASE("a probe says what the program is and ends", "[program][unit]") {
  PlayedCluster cluster;
  RunningProgram probe(cluster.StartOf(v1::PROGRAM_ROLE_PROBE, 0, 0), {"sum", "5"});

  const v1::ProgramReady ready = probe.AwaitReady();

  CHECK(probe.AwaitExit() == "exit code 0");
  CHECK(ready.function_count() == 12);
  CHECK(ready.functions() != 0);
  CHECK(ready.abi().starts_with("muster "));
  RunningProgram again(cluster.StartOf(v1::PROGRAM_ROLE_PROBE, 0, 0), {});
  CHECK(again.AwaitReady().functions() == ready.functions());
}

TEST_CASE("a program that does not come to its first line says nothing", "[program][unit]") {
  PlayedCluster cluster;
  RunningProgram probe(cluster.StartOf(v1::PROGRAM_ROLE_PROBE, 0, 0), {"no-init"});

  CHECK(probe.AwaitExit() == "exit code 0");
  CHECK_FALSE(probe.has_messages());
}

TEST_CASE("without a cluster a program says how to submit it", "[program][unit]") {
  std::vector<std::string> lines;
  auto child = process::Child::Start(
      {.argv = {ClosuresProgram(), "sum", "5", "the cat's hat", ""},
       .on_line = [&](auto, const std::string& line) { lines.push_back(line); }});
  REQUIRE(child.ok());

  const auto exit = (*child)->Wait(std::chrono::seconds(60));

  REQUIRE(exit.ok());
  CHECK(exit->ToString() == "exit code 2");
  REQUIRE(lines.size() == 2);
  CHECK(lines[1] == "  muster submit --strategy parameter_server -- " + ClosuresProgram() +
                        R"( sum 5 'the cat'\''s hat' '')");
}

TEST_CASE("closures of a driver run in executors over either kind of link", "[program][unit]") {
  PlayedCluster cluster(GENERATE(as<std::string>(), "auto", "tcp", "local"));
  cluster.StartExecutor(0);
  cluster.StartExecutor(1);
  RunningProgram& driver = cluster.StartDriver({"sum", "2000", "2"});

  CHECK(driver.AwaitLine("sum 2001000"));
  CHECK(driver.AwaitExit() == "exit code 0");
  const auto end = driver.Last(&v1::FromProgram::has_end);
  REQUIRE(end.has_value());
  CHECK(end->end().status().code() == 0);
  const auto report = driver.Last(&v1::FromProgram::has_report);
  REQUIRE(report.has_value());
  CHECK(report->report().scheduled() == 2'000);
  CHECK(report->report().done() == 2'000);
  CHECK(report->report().reruns() == 0);
  CHECK(report->report().phase() == "closure 2000");
}

TEST_CASE("executors that come later and are replaced are used, and no closure counts twice",
          "[program][unit][CCF-02][CCF-05]") {
  PlayedCluster cluster;
  const testing::TempFolder folder;
  const std::string file = folder / "executions";
  RunningProgram& driver = cluster.StartDriver({"counted", "200000", file});
  RunningProgram& first = cluster.StartExecutor(0);
  REQUIRE(AwaitSize(file, 500));

  first.Signal(SIGKILL);
  CHECK(first.AwaitExit() == "signal SIGKILL");
  cluster.TellEnd(first, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE);
  RunningProgram& second = cluster.StartExecutor(0);
  cluster.StartExecutor(1);
  const std::uintmax_t before = SizeOf(file);
  REQUIRE(AwaitSize(file, before + 500));
  second.Signal(SIGKILL);  // and nobody says so: the broken link is enough

  CHECK(driver.AwaitLine("sum 20000100000"));
  CHECK(driver.AwaitExit() == "exit code 0");
  const auto report = driver.Last(&v1::FromProgram::has_report);
  REQUIRE(report.has_value());
  CHECK(report->report().done() == 200'000);
  // A closure that ended and whose result was lost runs again: none is left out.
  CHECK(SizeOf(file) >= 200'000);
  CHECK(SizeOf(file) <= 200'000 + report->report().reruns());
}

TEST_CASE("an executor that is stopped loses its closures to the others", "[program][unit]") {
  PlayedCluster cluster;
  const testing::TempFolder folder;
  const std::string file = folder / "executions";
  RunningProgram& stopped = cluster.StartExecutor(0);
  cluster.StartExecutor(1);
  RunningProgram& driver = cluster.StartDriver({"counted", "50000", file});
  REQUIRE(AwaitSize(file, 500));

  stopped.Signal(SIGSTOP);

  CHECK(driver.AwaitLine("sum 1250025000"));
  CHECK(driver.AwaitExit() == "exit code 0");
  stopped.Signal(SIGCONT);
}

TEST_CASE("a driver that was killed is succeeded by the next, which has the same executors",
          "[program][unit]") {
  PlayedCluster cluster;
  const testing::TempFolder folder;
  const std::string file = folder / "executions";
  RunningProgram& executor = cluster.StartExecutor(0);
  RunningProgram& first = cluster.StartDriver({"counted", "1000000", file});
  REQUIRE(AwaitSize(file, 500));
  first.Signal(SIGKILL);
  CHECK(first.AwaitExit() == "signal SIGKILL");

  RunningProgram& next = cluster.StartDriver({"sum", "1000"});

  CHECK(next.AwaitLine("sum 500500"));
  CHECK(next.AwaitExit() == "exit code 0");
  CHECK_FALSE(executor.Last(&v1::FromProgram::has_end).has_value());
  CHECK(::kill(executor.pid(), 0) == 0);
}

TEST_CASE("how main ends is told before the process does", "[program][unit]") {
  PlayedCluster cluster;
  RunningProgram& failed = cluster.StartDriver({"fail", "3"});
  CHECK(failed.AwaitExit() == "exit code 3");
  const auto returned = failed.Last(&v1::FromProgram::has_end);
  REQUIRE(returned.has_value());
  CHECK(returned->end().status().code() == 0);

  RunningProgram& thrown = cluster.StartDriver({"throw"});
  CHECK(thrown.AwaitExit() == "signal SIGABRT");
  const auto end = thrown.Last(&v1::FromProgram::has_end);
  REQUIRE(end.has_value());
  CHECK(end->end().status().message() == "an exception left main(): thrown by main");

  RunningProgram& verbose = cluster.StartDriver({"throw", "3000000"});
  CHECK(verbose.AwaitExit() == "signal SIGABRT");
  const auto cut = verbose.Last(&v1::FromProgram::has_end);
  REQUIRE(cut.has_value());
  const std::string& said = cut->end().status().message();
  CHECK(said.size() < 17'000);
  CHECK(said.ends_with(". ... (3000014 bytes in all)"));
  const auto report = verbose.Last(&v1::FromProgram::has_report);
  REQUIRE(report.has_value());
  CHECK(report->report().phase().size() == 1'024);
}

TEST_CASE("the end of a process that main has forked is not main's", "[program][unit]") {
  PlayedCluster cluster;
  RunningProgram& driver = cluster.StartDriver({"fork", "3"});

  CHECK(driver.AwaitLine("forked ones have ended"));
  CHECK(driver.AwaitExit() == "exit code 3");
  CHECK(driver.Count(&v1::FromProgram::has_end) == 1);
}

TEST_CASE("a closure that throws is an error of the program's, one that crashes is given up",
          "[program][unit]") {
  PlayedCluster cluster;
  cluster.StartExecutor(0);
  RunningProgram& driver = cluster.StartDriver({"throw-closure"});
  CHECK(driver.AwaitLine("Throw threw: thrown by a closure"));
  CHECK(driver.AwaitExit() == "exit code 1");

  // Whichever executor has the closure ends, until the closure is given up.
  std::vector<RunningProgram*> executors;
  RunningProgram& other = cluster.StartDriver({"segfault"});
  const auto ended = [](RunningProgram* one) { return one->has_exited(); };
  for (std::uint32_t worker = 1; worker < 20 && !other.has_exited();) {
    while (executors.size() < 2) executors.push_back(&cluster.StartExecutor(worker++));
    REQUIRE(AwaitTrue([&] { return other.has_exited() || std::ranges::any_of(executors, ended); }));
    const auto dead = std::ranges::find_if(executors, ended);
    if (dead == executors.end()) break;
    CHECK((*dead)->AwaitExit() == "signal SIGSEGV");
    cluster.TellEnd(**dead, v1::ExecutorVerdict::CAUSE_CRASHED);
    executors.erase(dead);
  }
  CHECK(other.AwaitLine("closure 1"));
  CHECK(other.AwaitExit() == "exit code 1");
}

TEST_CASE("a closure that exits takes nothing from under those that run beside it",
          "[program][unit]") {
  PlayedCluster cluster;
  RunningProgram& executor = cluster.StartExecutor(0);
  (void)cluster.StartDriver({"exit-closure", "4"});
  CHECK(executor.AwaitExit() == "exit code 4");
  CHECK(executor.AwaitLine("exits with 4 and no end of the line"));
  CHECK(std::ranges::none_of(executor.lines(), [](const std::string& line) {
    return line.find("destroyed") != std::string::npos;
  }));
}

TEST_CASE(
    "of several that ran when their executor ended the innocent get through, the guilty is named",
    "[program][unit]") {
  PlayedCluster cluster;
  const testing::TempFolder folder;
  cluster.closures_at_a_time = 4;
  RunningProgram* executor = &cluster.StartExecutor(0);
  RunningProgram& driver = cluster.StartDriver({"beside", folder.path()});

  for (int end = 1; end <= 3; ++end) {
    CHECK(executor->AwaitExit() == "signal SIGSEGV");
    cluster.TellEnd(*executor, v1::ExecutorVerdict::CAUSE_CRASHED);
    if (end < 3) executor = &cluster.StartExecutor(0);
  }

  CHECK(driver.AwaitLine("beside 6"));
  CHECK(driver.AwaitLine(
      "closure 4 has ended its executor 3 times, 2 of them with nothing else in flight (worker:0"));
  CHECK(driver.AwaitExit() == "exit code 1");
}

TEST_CASE("a driver whose environment says no number where it should tells it and does not begin",
          "[program][unit][CCO-23]") {
  PlayedCluster cluster;
  const testing::EnvironmentVariables wrong{{{"TF_COORDINATOR_SCHEDULE_START_DELAY", "2s"}}};
  RunningProgram& driver = cluster.StartDriver({"sum", "5"});

  const v1::ProgramReady ready = driver.AwaitReady();

  const std::string text =
      "TF_COORDINATOR_SCHEDULE_START_DELAY=\"2s\" in the environment: it is a number of seconds, "
      "from 0 to 1000000";
  CHECK(ready.status().code() == static_cast<int>(StatusCode::kInvalidArgument));
  CHECK(ready.status().message() == text);
  CHECK(driver.AwaitLine("muster: INVALID_ARGUMENT: " + text));
  CHECK(driver.AwaitExit() == "exit code 1");
}

TEST_CASE("workers of a program begin one after another where its environment says so",
          "[program][unit][CCO-23]") {
  PlayedCluster cluster;
  const testing::EnvironmentVariables delay{{{"TF_COORDINATOR_SCHEDULE_START_DELAY", "1000000"},
                                             {"TF_COORDINATOR_SCHEDULE_START_DELAY_MAX", "0.5"}}};
  cluster.StartExecutor(3);
  const auto begin = std::chrono::steady_clock::now();
  RunningProgram& driver = cluster.StartDriver({"sum", "5"});

  CHECK(driver.AwaitLine("sum 15"));
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(500));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("each process has the program's object, and functions take it first", "[program][unit]") {
  PlayedCluster cluster;
  cluster.StartExecutor(0);
  RunningProgram& driver = cluster.StartDriver({"object", "10"});

  CHECK(driver.AwaitLine("object 155, own 100"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("an executor that cannot build the program's object does not serve", "[program][unit]") {
  PlayedCluster cluster;
  ::setenv("CLOSURES_BROKEN", "1", 1);
  RunningProgram executor(cluster.StartOf(v1::PROGRAM_ROLE_EXECUTOR, 0, 1), {});
  ::unsetenv("CLOSURES_BROKEN");

  const v1::ProgramReady ready = executor.AwaitReady();

  CHECK(ready.status().code() == static_cast<int>(StatusCode::kUnknown));
  CHECK(ready.status().message() == "no tally here");
  CHECK(executor.AwaitExit() == "exit code 1");
}

TEST_CASE("a driver learns that its job is to stop", "[program][unit]") {
  PlayedCluster cluster;
  RunningProgram& driver = cluster.StartDriver({"stop"});
  REQUIRE(driver.AwaitLine("runs until it is to stop"));

  v1::ToProgram message;
  message.mutable_stop()->set_grace_ms(60'000);
  driver.Send(message);

  CHECK(driver.AwaitLine("stops as asked"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("an executor ends when its daemon does, whatever its closures do", "[program][unit]") {
  PlayedCluster cluster;
  auto ends = process::MessagePipe::MakePair();
  REQUIRE(ends.ok());
  const v1::ProgramStart start = cluster.StartOf(v1::PROGRAM_ROLE_EXECUTOR, 0, 1);
  process::Child::Options options =
      services::ProgramChild(ClosuresProgram(), v1::ProgramSpec(), start);
  options.descriptors = {{ends->second, 3}};
  auto child = process::Child::Start(std::move(options));
  ::close(ends->second);
  REQUIRE(child.ok());
  {
    process::MessagePipe pipe(ends->first);
    v1::ToProgram first;
    *first.mutable_start() = start;
    REQUIRE(pipe.Send(first).ok());
    v1::FromProgram message;
    REQUIRE(pipe.Receive(message, Millis(60'000)).ok());
    REQUIRE(message.has_ready());
    // A sign of life without being asked, for the watchdog.
    REQUIRE(pipe.Receive(message, Millis(60'000)).ok());
    CHECK(message.has_pulse());
  }

  const auto exit = (*child)->Wait(std::chrono::seconds(60));

  REQUIRE(exit.ok());
  CHECK(exit->ToString() == "exit code 0");
}

}  // namespace
}  // namespace muster::program
