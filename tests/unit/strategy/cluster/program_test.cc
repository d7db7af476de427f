// Programs on the C++ API: driver and executors as real processes of tests/programs/coordinator,
// whose daemons the test plays.
#include <csignal>
#include <cstdlib>
#include <fstream>

#include <unistd.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/program/cluster.h"

namespace muster::program {
namespace {

const std::string kProgram = ProgramOfTests("coordinator");

std::size_t LinesOf(const std::string& file) {
  std::ifstream in(file);
  std::size_t lines = 0;
  for (std::string line; std::getline(in, line);) ++lines;
  return lines;
}

// Waits for what another process does.
template <class Met>
bool Eventually(Met met) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!met()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::usleep(1'000);
  }
  return true;
}

TEST_CASE("a program trains with per-worker data on the workers of its job",
          "[strategy][unit][CCO-01]") {
  PlayedCluster cluster("auto", kProgram);
  cluster.StartExecutor(0);
  cluster.StartExecutor(1);
  {
    RunningProgram& driver = cluster.StartDriver({"train", "40"});
    CHECK(driver.AwaitLine("mean 17.5"));
    CHECK(driver.AwaitLine("product 27"));
    CHECK(driver.AwaitExit() == "exit code 0");
  }
  // The coordinator of a process is one.
  RunningProgram& second = cluster.StartDriver({"second"});
  CHECK(second.AwaitLine("same 1"));
  CHECK(second.AwaitExit() == "exit code 0");
}

TEST_CASE("the program of the documentation prints what its page says", "[strategy][unit]") {
  std::vector<std::string> wanted;
  std::ifstream page(MUSTER_DOC_TEXT);
  for (std::string line; std::getline(page, line);) wanted.push_back(line);
  REQUIRE_FALSE(wanted.empty());
  PlayedCluster cluster("auto", MUSTER_DOC_PROGRAM);
  cluster.StartExecutor(0);
  cluster.StartExecutor(1);

  RunningProgram& driver = cluster.StartDriver({"the cat and the hat", "a cat in the hat"});

  CHECK(driver.AwaitExit() == "exit code 0");
  CHECK(driver.lines() == wanted);
  const auto report = driver.Last(&v1::FromProgram::has_report);
  REQUIRE(report.has_value());
  CHECK(report->report().phase() == "all lines are counted");
}

TEST_CASE("functions take the program's object first, each process its own",
          "[strategy][unit][CCO-03]") {
  PlayedCluster cluster("auto", kProgram);
  cluster.StartExecutor(0);
  RunningProgram& driver = cluster.StartDriver({"object"});
  CHECK(driver.AwaitLine("weighted 60 after 10 calls, own 0"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("an executor that cannot make the program's object says why and does not serve",
          "[strategy][unit]") {
  PlayedCluster cluster("auto", kProgram);
  ::setenv("MODEL_BROKEN", "1", 1);
  RunningProgram executor(cluster.StartOf(v1::PROGRAM_ROLE_EXECUTOR, 0, 1), {}, kProgram);
  ::unsetenv("MODEL_BROKEN");
  const v1::ProgramReady ready = executor.AwaitReady();
  CHECK(ready.status().code() == static_cast<int>(StatusCode::kFailedPrecondition));
  CHECK(ready.status().message() == "no weights here");
  CHECK(executor.AwaitExit() == "exit code 1");
}

TEST_CASE("a function that never ends is given up at its deadline, and its executor ends",
          "[strategy][unit]") {
  PlayedCluster cluster("auto", kProgram);
  RunningProgram& executor = cluster.StartExecutor(0);
  RunningProgram& driver = cluster.StartDriver({"endless"});
  CHECK(driver.AwaitLine("refused 0: INVALID_ARGUMENT"));
  CHECK(driver.AwaitLine("refused -1: INVALID_ARGUMENT"));
  CHECK(executor.AwaitLine("loops has run for 50 ms, its deadline"));
  CHECK(executor.AwaitExit() == "signal SIGKILL");
  cluster.TellEnd(executor, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE);
  CHECK(
      driver.AwaitLine("caught DEADLINE_EXCEEDED of worker:0: closure 2: loops has run for 50 ms"));
  cluster.StartExecutor(0);
  CHECK(driver.AwaitLine("again 7"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("a program begins though its worker was lost before, and connects to the next one",
          "[strategy][unit][PSS-12]") {
  PlayedCluster cluster("auto", kProgram);
  RunningProgram& lost = cluster.StartExecutor(0);
  lost.Signal(SIGKILL);
  lost.AwaitExit();
  // It is a member still, which the driver tries to connect to, again and again.
  RunningProgram& driver = cluster.StartDriver({"train", "40"});
  cluster.TellEnd(lost, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE);
  cluster.StartExecutor(0);
  CHECK(driver.AwaitLine("mean 17.5"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("an executor is told its own place, and of no other worker", "[strategy][unit][PSS-11]") {
  PlayedCluster cluster("auto", kProgram);
  cluster.StartExecutor(0);
  cluster.StartExecutor(1);
  RunningProgram& driver = cluster.StartDriver({"visible"});
  for (const char* const index : {"0", "1"}) {
    CHECK(driver.AwaitLine(fmt::format(
        R"(sees {{"cluster": {{}}, "task": {{"type": "worker", "index": {}}}}})", index)));
  }
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("functions of a program know the index of their worker", "[strategy][unit][CCO-20]") {
  PlayedCluster cluster("auto", kProgram);
  cluster.StartExecutor(3);
  RunningProgram& driver = cluster.StartDriver({"indices"});
  CHECK(driver.AwaitLine("worker 3"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("a program waits for its first worker, and outlives the loss of one",
          "[strategy][unit][CCF-02]") {
  const testing::TempFolder folder;
  const std::string file = folder / "executions";
  PlayedCluster cluster("auto", kProgram);
  RunningProgram& driver = cluster.StartDriver({"count", "200", file});
  RunningProgram& first = cluster.StartExecutor(0);
  REQUIRE(driver.AwaitLine("scheduled 200"));
  REQUIRE(Eventually([&] { return LinesOf(file) >= 5; }));
  first.Signal(SIGKILL);
  first.AwaitExit();
  cluster.TellEnd(first, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE);
  cluster.StartExecutor(1);
  CHECK(driver.AwaitLine("sum 20100"));
  CHECK(driver.AwaitExit() == "exit code 0");
  CHECK(LinesOf(file) >= 200);
  const auto report = driver.Last(&v1::FromProgram::has_report);
  REQUIRE(report.has_value());
  CHECK(report->report().phase() == "all are scheduled");
}

TEST_CASE("a worker that is gone for good is still one whose value is asked for",
          "[strategy][unit][CCF-12]") {
  PlayedCluster cluster("auto", kProgram);
  cluster.StartExecutor(0);
  RunningProgram& lost = cluster.StartExecutor(1);
  RunningProgram& driver = cluster.StartDriver({"outlive"});
  REQUIRE(driver.AwaitLine("made"));
  lost.Signal(SIGKILL);
  lost.AwaitExit();
  cluster.TellEnd(lost, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE);
  cluster.StartExecutor(2);
  CHECK(driver.AwaitLine("worker:1 has lost its value"));
  CHECK(driver.AwaitLine("caught the loss of worker:1"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("an error that a program does not catch is its job's, with code and worker",
          "[strategy][unit]") {
  PlayedCluster cluster("auto", kProgram);
  cluster.StartExecutor(0);
  RunningProgram& driver = cluster.StartDriver({"fail"});
  CHECK(driver.AwaitLine("caught OUT_OF_RANGE of worker:0"));
  CHECK(driver.AwaitLine("again 7"));
  CHECK(driver.AwaitExit() == "signal SIGABRT");
  const auto end = driver.Last(&v1::FromProgram::has_end);
  REQUIRE(end.has_value());
  CHECK(end->end().status().message().find("the closure's own trouble") != std::string::npos);
  CHECK(end->end().status().message().find("worker:0") != std::string::npos);
}

}  // namespace
}  // namespace muster::program
