// Programs with variables on parameter servers: driver and executors as real processes of
// tests/programs/servers, whose daemons and servers the test plays.
#include <csignal>
#include <fstream>

#include <unistd.h>

#include "ps/apply_pool.h"
#include "ps/server/ps_server.h"
#include "tests/support/environment_variables.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/program/cluster.h"

namespace muster::program {
namespace {

// Waits until it says that closures have ended on it.
bool HasRunSome(RunningProgram& executor) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < end) {
    const auto pulse = executor.Last(&v1::FromProgram::has_pulse);
    if (pulse.has_value() && pulse->pulse().ended() > 0) return true;
    ::usleep(1'000);
  }
  return false;
}

// Two servers, two executors unless fewer are wanted.
class ServersFixture {
 public:
  explicit ServersFixture(const std::string& program = ProgramOfTests("servers"),
                          std::uint32_t executors = 2)
      : cluster("auto", program) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      auto server = ps::PsServer::Start({.unix_directory = folder_.path(),
                                         .token = "token",
                                         .host_id = net::HostId().value(),
                                         .apply_pool = &pool_});
      servers_.push_back(std::move(server).value());
      v1::PsAddress address;
      address.set_index(i);
      *address.mutable_data() = servers_.back()->endpoint();
      cluster.AddServer(address);
    }
    for (std::uint32_t i = 0; i < executors; ++i) cluster.StartExecutor(i);
  }
  void EndServer(std::size_t i) { servers_[i].reset(); }
  // Two more, each in the midst of its closures.
  void KillExecutors() {
    for (std::uint32_t i = 0; i < 2; ++i) {
      RunningProgram& executor = cluster.StartExecutor(2 + i);
      REQUIRE(HasRunSome(executor));
      executor.Signal(SIGKILL);
      executor.AwaitExit();
      cluster.TellEnd(executor, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE);
    }
  }

 private:
  testing::TempFolder folder_;
  ps::ApplyPool pool_{1};
  std::vector<std::unique_ptr<ps::PsServer>> servers_;

 public:
  PlayedCluster cluster;
};

TEST_CASE("the program with variables of the documentation prints what its page says",
          "[strategy][unit]") {
  std::vector<std::string> wanted;
  std::ifstream page(MUSTER_DOC_TEXT);
  for (std::string line; std::getline(page, line);) wanted.push_back(line);
  REQUIRE_FALSE(wanted.empty());
  ServersFixture fixture(MUSTER_DOC_PROGRAM);

  RunningProgram& driver = fixture.cluster.StartDriver({});

  CHECK(driver.AwaitExit() == "exit code 0");
  CHECK(driver.lines() == wanted);
}

TEST_CASE_METHOD(ServersFixture, "executors find the variables that the driver has made",
                 "[strategy][unit][CCO-07]") {
  RunningProgram& driver = cluster.StartDriver({"train", "300"});
  CHECK(driver.AwaitLine("error small"));
  CHECK(driver.AwaitExit() == "exit code 0");
  // Another driver's are its own, and the executors find them.
  RunningProgram& second = cluster.StartDriver({"count", "50"});
  CHECK(second.AwaitLine("counted 50"));
  CHECK(second.AwaitExit() == "exit code 0");
  RunningProgram& third = cluster.StartDriver({"lookup"});
  CHECK(third.AwaitLine("table 0"));
  CHECK(third.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "each closure counts once, though executors are killed",
                 "[strategy][unit][CCF-02]") {
  RunningProgram& driver = cluster.StartDriver({"count", "2000"});
  REQUIRE(driver.AwaitLine("scheduled 2000"));
  KillExecutors();
  CHECK(driver.AwaitLine("counted 2000"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "each closure counts once, though executors of several are killed",
                 "[strategy][unit][CCF-02]") {
  cluster.closures_at_a_time = 4;
  // They are sooner done than by one at a time, and must last until the executors have begun.
  RunningProgram& driver = cluster.StartDriver({"count", "8000"});
  REQUIRE(driver.AwaitLine("scheduled 8000"));
  KillExecutors();
  CHECK(driver.AwaitLine("counted 8000"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "each closure's gradients count once, though executors are killed",
                 "[strategy][unit][CCF-02]") {
  RunningProgram& driver = cluster.StartDriver({"optimize", "2000"});
  REQUIRE(driver.AwaitLine("scheduled 2000"));
  KillExecutors();
  CHECK(driver.AwaitLine("optimized 3000.0 3000.0"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "an optimizer of other options than the driver's is refused",
                 "[strategy][unit]") {
  RunningProgram& driver = cluster.StartDriver({"options"});
  CHECK(driver.AwaitLine("variable w has another optimizer already"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE("without a worker a program has its strategy, and waits for one as long as it is told",
          "[strategy][unit][PSS-05]") {
  ServersFixture fixture(ProgramOfTests("servers"), 0);
  fixture.cluster.wait_ms = 50;

  // It makes its strategy and variables first, then its coordinator.
  RunningProgram& driver = fixture.cluster.StartDriver({"count", "1"});

  CHECK(driver.AwaitExit() == "signal SIGABRT");
  const auto end = driver.Last(&v1::FromProgram::has_end);
  REQUIRE(end.has_value());
  CAPTURE(end->end().status().message());
  CHECK(end->end().status().message().find("DEADLINE_EXCEEDED") != std::string::npos);
  CHECK(end->end().status().message().find("waited for 1 executor, 0 connected") !=
        std::string::npos);
}

TEST_CASE_METHOD(ServersFixture, "a worker of another number of replicas is refused by name",
                 "[strategy][unit][PSS-09]") {
  RunningProgram& driver = cluster.StartDriver({"refused"});
  ::setenv("MODEL_DEVICES", "two", 1);
  cluster.StartExecutor(2);
  ::unsetenv("MODEL_DEVICES");
  CHECK(driver.AwaitLine("refused INVALID_ARGUMENT"));
  CHECK(driver.AwaitLine("worker:2 has [2]"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture,
                 "a worker that comes back with another number of replicas is refused by name",
                 "[strategy][unit][PSS-09]") {
  RunningProgram& driver = cluster.StartDriver({"refused"});
  RunningProgram& before = cluster.StartExecutor(2);
  REQUIRE(HasRunSome(before));
  before.Signal(SIGKILL);
  before.AwaitExit();
  cluster.TellEnd(before, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE);
  CHECK_FALSE(driver.has_exited());
  ::setenv("MODEL_DEVICES", "two", 1);
  cluster.StartExecutor(2);
  ::unsetenv("MODEL_DEVICES");
  CHECK(driver.AwaitLine("worker:2 has [2] replicas in its ParameterServerStrategies, "));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "a link to the servers of a name that nobody knows is refused",
                 "[strategy][unit]") {
  cluster.link = "radio";
  RunningProgram& driver = cluster.StartDriver({"count", "1"});
  CHECK(driver.AwaitLine("link \"radio\": wanted auto, tcp or local"));
  CHECK(driver.AwaitExit() != "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "a variable of another shape is refused and both are named",
                 "[strategy][unit]") {
  RunningProgram& driver = cluster.StartDriver({"differ"});
  CHECK(
      driver.AwaitLine("the driver has made it as Float of shape [3, 1], this process as Float "
                       "of shape [5, 1]"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "run outside of closures computes in the driver, and warns of it",
                 "[strategy][unit][PSS-07]") {
  RunningProgram& driver = cluster.StartDriver({"outside"});
  CHECK(driver.AwaitLine("run() of a ParameterServerStrategy outside a scheduled function"));
  CHECK(driver.AwaitLine("ran 6"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "reduce outside of closures warns of it though nothing was run",
                 "[strategy][unit][PSS-07]") {
  RunningProgram& driver = cluster.StartDriver({"reduced"});
  CHECK(driver.AwaitLine("reduce() of a ParameterServerStrategy outside a scheduled function"));
  CHECK(driver.AwaitLine("reduced 3"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "executors find a variable that was dropped and made again",
                 "[strategy][unit][CCO-07]") {
  RunningProgram& driver = cluster.StartDriver({"anew"});
  CHECK(driver.AwaitLine("anew 20 20 20"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture,
                 "a function may make modules and drop them, each of which has values and a "
                 "learning rate of its own",
                 "[strategy][unit]") {
  RunningProgram& driver = cluster.StartDriver({"modules", "20"});
  CHECK(driver.AwaitLine("modules 240 5.00"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture, "a server that ends is PsUnavailable in schedule or join",
                 "[strategy][unit][CCF-10]") {
  const testing::TempFolder folder;
  const std::string begun = folder / "begun";
  RunningProgram& driver = cluster.StartDriver({"lost", begun});
  REQUIRE(driver.Await([&] { return std::ifstream(begun).good(); }));
  EndServer(0);
  CHECK(driver.AwaitLine("lost ps:0"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

TEST_CASE_METHOD(ServersFixture,
                 "the environment says how often a server may fail before it is lost",
                 "[strategy][unit][CCF-10]") {
  const testing::TempFolder folder;
  const std::string begun = folder / "begun";
  const testing::EnvironmentVariables once{{{"TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", "1"}}};
  RunningProgram& driver = cluster.StartDriver({"lost", begun});
  REQUIRE(driver.Await([&] { return std::ifstream(begun).good(); }));
  EndServer(0);
  CHECK(driver.AwaitLine("lost ps:0 after 0 retries"));
  CHECK(driver.AwaitExit() == "exit code 0");
}

}  // namespace
}  // namespace muster::program
