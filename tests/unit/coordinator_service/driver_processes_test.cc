#include "services/coordinator/driver_processes.h"

#include <fstream>
#include <future>
#include <utility>

#include <sys/stat.h>

#include "tests/support/catch.h"
#include "tests/unit/coordinator/temp_dir.h"

namespace muster::coordinator {
namespace {

// How the driver of job "j" ends. `then` runs on the strand after the start was asked for.
std::string HowItEnds(const std::string& program, std::function<void(DriverProcesses&)> then) {
  ThreadScheduler strand;
  std::promise<std::string> ended;
  DriverProcesses drivers(
      strand,
      {.program = program,
       .token_file = "none",
       .on_line = [](auto&&...) {},
       .on_exit = [&](const std::string&, std::uint64_t number, bool,
                      const std::string& how) { ended.set_value(number == 7 ? how : "another"); }});
  strand.Post([&] {
    REQUIRE(drivers.Start("j", 7).ok());
    then(drivers);
  });
  auto result = ended.get_future();
  const bool came = result.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  std::promise<void> closed;
  strand.Post([&] {
    drivers.Close();
    closed.set_value();
  });
  closed.get_future().wait();
  return came ? result.get() : "never";
}

TEST_CASE("A driver that cannot be started has ended, and says why", "[services][unit]") {
  const std::string how = HowItEnds("/no/such/trainer", [](DriverProcesses&) {});
  CHECK(how.starts_with("no start: NOT_FOUND"));
  CHECK(how.find("/no/such/trainer") != std::string::npos);
}

TEST_CASE("A driver that is to stop before it runs is stopped when it does", "[services][unit]") {
  const muster::testing::TempDir dir;
  const std::string program = dir.path() + "/trainer";
  std::ofstream(program) << "#!/bin/sh\nexec tail -f /dev/null\n";
  REQUIRE(chmod(program.c_str(), 0700) == 0);

  const auto stop = [](DriverProcesses& drivers) { drivers.Stop("j", Millis(20'000)); };
  CHECK(HowItEnds(program, stop) == "signal SIGTERM");
  const auto kill = [](DriverProcesses& drivers) { drivers.Stop("j", Millis(0)); };
  CHECK(HowItEnds(program, kill) == "signal SIGKILL");
}

}  // namespace
}  // namespace muster::coordinator
