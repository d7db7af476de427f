#include "services/coordinator/driver_processes.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/support/undying.h"

namespace muster::coordinator {
namespace {

constexpr std::chrono::seconds kPatience{20};

// Drivers on a strand of their own. Callbacks that a test does not give do nothing.
class StrandedDrivers {
 public:
  explicit StrandedDrivers(DriverProcesses::Options options)
      : drivers_(strand_, Complete(std::move(options))) {}
  // As the daemon: what Close() has left on the strand runs while the drivers are there.
  ~StrandedDrivers() {
    (void)Do([](DriverProcesses& drivers) { drivers.Close(); });
    (void)Do([](DriverProcesses&) {});
  }
  StrandedDrivers(const StrandedDrivers&) = delete;
  StrandedDrivers& operator=(const StrandedDrivers&) = delete;

  // Runs `what` on the strand. False: not within 20 s.
  bool Do(std::function<void(DriverProcesses&)> what) {
    const auto done = std::make_shared<std::promise<void>>();
    auto is_done = done->get_future();
    strand_.Post([this, what = std::move(what), done] {
      what(drivers_);
      done->set_value();
    });
    return is_done.wait_for(kPatience) == std::future_status::ready;
  }
  // And `then`, before anything of it has run.
  void Start(const std::string& job, std::function<void(DriverProcesses&)> then = {}) {
    v1::ProgramStart start;
    start.set_job_id(job);
    start.set_incarnation(7);
    REQUIRE(Do([=](DriverProcesses& drivers) {
      REQUIRE(drivers.StartModel(start).ok());
      if (then) then(drivers);
    }));
  }
  // Waits for it: the first line of a driver may be there before its start has ended.
  int Pid(const std::string& job) {
    int pid = 0;
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (pid == 0 && std::chrono::steady_clock::now() < limit) {
      REQUIRE(Do([&](DriverProcesses& drivers) { pid = drivers.Pid(job); }));
    }
    REQUIRE(pid != 0);
    return pid;
  }

 private:
  static DriverProcesses::Options Complete(DriverProcesses::Options options) {
    if (!options.on_line) options.on_line = [](auto&&...) {};
    if (!options.on_exit) options.on_exit = [](auto&&...) {};
    if (!options.key) options.key = [](auto&&...) { return std::string("key"); };
    if (!options.on_message) options.on_message = [](auto&&...) {};
    return options;
  }

  ThreadScheduler strand_;
  DriverProcesses drivers_;
};

bool Came(std::promise<void>& event) {
  return event.get_future().wait_for(kPatience) == std::future_status::ready;
}

// How the driver of job "j" ends. `then`: as of Start().
std::string HowItEnds(const std::string& program, std::function<void(DriverProcesses&)> then) {
  std::promise<std::string> ended;
  StrandedDrivers drivers(
      {.program = program,
       .on_line = nullptr,
       .on_exit = [&](const std::string&, Incarnation number, bool, const std::string& how) {
         ended.set_value(number == Incarnation(7) ? how : "another");
       }});
  drivers.Start("j", std::move(then));
  auto result = ended.get_future();
  const bool came = result.wait_for(kPatience) == std::future_status::ready;
  return came ? result.get() : "never";
}

TEST_CASE("A driver that cannot be started has ended, and says why", "[services][unit]") {
  const std::string how = HowItEnds("/no/such/trainer", [](DriverProcesses&) {});
  CHECK(how.starts_with("no start: NOT_FOUND"));
  CHECK(how.find("/no/such/trainer") != std::string::npos);
}

TEST_CASE("A driver that is to stop before it runs is stopped when it does", "[services][unit]") {
  const muster::testing::TempFolder dir;
  const std::string program = dir / "trainer";
  std::ofstream(program) << "#!/bin/sh\nexec tail -f /dev/null\n";
  REQUIRE(chmod(program.c_str(), 0700) == 0);

  const auto stop = [](DriverProcesses& drivers) { drivers.Stop("j", Millis(20'000)); };
  CHECK(HowItEnds(program, stop) == "signal SIGTERM");
  const auto kill = [](DriverProcesses& drivers) { drivers.Stop("j", Millis(0)); };
  CHECK(HowItEnds(program, kill) == "signal SIGKILL");
}

TEST_CASE("A driver that cannot die holds up the start of no other", "[services][unit]") {
  const muster::testing::TempFolder dir;
  const std::string program = dir / "trainer";
  std::ofstream(program) << "#!/bin/sh\necho up\nexec tail -f /dev/null\n";
  REQUIRE(chmod(program.c_str(), 0700) == 0);
  std::map<std::string, std::promise<void>> up;
  for (const char* job : {"stuck", "next"}) up[job];
  StrandedDrivers drivers(
      {.program = program,
       .on_line = [&](const std::string& job, auto, auto&&) { up.at(job).set_value(); },
       .on_exit = nullptr});
  drivers.Start("stuck");
  REQUIRE(Came(up["stuck"]));
  std::optional<muster::testing::Undying> held(std::in_place, drivers.Pid("stuck"));

  up["stuck"] = std::promise<void>();
  drivers.Start("stuck");  // in the place of the one that is there
  drivers.Start("next");

  if (held->allowed()) {
    CHECK(Came(up["stuck"]));
    CHECK(Came(up["next"]));
  }
  held.reset();
}

TEST_CASE("A driver that cannot die holds up nobody who kills them all", "[services][unit]") {
  const muster::testing::TempFolder dir;
  const std::string program = dir / "trainer";
  std::ofstream(program) << "#!/bin/sh\necho up\nexec tail -f /dev/null\n";
  REQUIRE(chmod(program.c_str(), 0700) == 0);
  std::promise<void> up;
  int ends = 0;  // the strand's
  StrandedDrivers drivers({.program = program,
                           .on_line = [&](auto&&...) { up.set_value(); },
                           .on_exit = [&](auto&&...) { ++ends; }});
  drivers.Start("j");
  REQUIRE(Came(up));
  muster::testing::Undying held(drivers.Pid("j"));

  CHECK(drivers.Do([](DriverProcesses& all) { all.Kill(); }));
  CHECK(drivers.Do([](DriverProcesses&) {}));

  held.Release();
  CHECK(drivers.Do([](DriverProcesses& all) { all.Close(); }));
  CHECK(drivers.Do([&](DriverProcesses&) { CHECK(ends == 0); }));
}

TEST_CASE("A model's driver is told its job, and of its daemon's secrets nothing",
          "[services][unit]") {
  const muster::testing::TempFolder dir;
  const std::string program = dir / "trainer";
  std::ofstream(program) << "#!/bin/sh\ntest \"$*\" = j && ! env | grep -q '^MUSTER_\\|^CREDENT'\n";
  REQUIRE(chmod(program.c_str(), 0700) == 0);
  const std::vector<std::string> secrets = {"MUSTER_TOKEN_FILE", "MUSTER_TLS_KEY",
                                            "CREDENTIALS_DIRECTORY"};
  for (const std::string& name : secrets) setenv(name.c_str(), "/secret", 1);

  const std::string how = HowItEnds(program, [](DriverProcesses&) {});

  for (const std::string& name : secrets) unsetenv(name.c_str());
  CHECK(how == "exit code 0");
}

// A program's driver, which here is a shell script: what it says on its pipe and prints, in order.
TEST_CASE("A program's driver has its start at descriptor 3 and no token, and is heard",
          "[services][program]") {
  const muster::testing::TempFolder dir;
  const std::string path = dir / "words";
  // FromProgram{ready {abi: "9"}} is 0a 03 22 01 '9'. Of the length before its first message it
  // reads one byte.
  std::ofstream(path) << "#!/bin/sh\n"
                         "head -c 1 <&3 >/dev/null || exit 9\n"
                         "echo \"$0 $* fd $MUSTER_PROGRAM_FD token ${MUSTER_TOKEN_FILE-none}\"\n"
                         "echo \"$TF_CONFIG\"\n"
                         "printf '\\005\\000\\000\\000\\012\\003\\042\\0019' >&3\n"
                         "exit 3\n";
  REQUIRE(chmod(path.c_str(), 0700) == 0);
  setenv("MUSTER_TOKEN_FILE", "/secret", 1);

  std::vector<std::string> story;  // the strand's
  std::promise<void> ended;
  StrandedDrivers drivers(
      {.program = "none",
       .on_line = [&](const std::string&, std::int64_t,
                      const std::string& line) { story.push_back(line); },
       .on_exit =
           [&](const std::string&, Incarnation number, bool success, const std::string& how) {
             story.push_back(fmt::format("{} {} {}", number, success, how));
             ended.set_value();
           },
       .executable = [&](const std::string& sha256) -> Result<std::string> {
         if (sha256 != "abc") return NotFound("no file {}", sha256);
         return path;
       },
       .key = [](const std::string& job,
                 Epoch epoch) { return fmt::format("key of {} {}", job, epoch.value()); },
       .on_message =
           [&](const std::string& job, Incarnation number, const v1::FromProgram& message) {
             story.push_back(fmt::format("{} {} {}", job, number, message.ready().abi()));
           }});
  ProgramLaunch launch;
  launch.program.set_name("words");
  launch.program.set_sha256("abc");
  launch.program.add_arguments("--epochs");
  launch.program.add_arguments("3");
  launch.start.set_job_id("j");
  launch.start.set_incarnation(7);
  launch.start.set_epoch(2);
  launch.cluster["worker"][1] = "127.0.0.1:9";
  REQUIRE(drivers.Do([&](DriverProcesses& all) {
    all.set_address("127.0.0.1:5");
    REQUIRE(all.StartProgram(launch).ok());
    all.Send("j", v1::ToProgram());
  }));
  const bool came = Came(ended);
  std::vector<std::string> all;
  REQUIRE(drivers.Do([&](DriverProcesses& mine) {
    mine.Close();
    all = story;
  }));
  unsetenv("MUSTER_TOKEN_FILE");
  REQUIRE(came);
  REQUIRE(all.size() == 4);
  CHECK(all.back() == "7 false exit code 3");
  // Lines and messages come by two ways.
  std::sort(all.begin(), all.end() - 1);
  CHECK(all[0] == path + " --epochs 3 fd 3 token none");
  CHECK(all[1] == "j 7 9");
  CHECK(all[2] == R"({"cluster":{"chief":["127.0.0.1:5"],"worker":{"1":"127.0.0.1:9"}},)"
                  R"("task":{"index":0,"type":"chief"}})");
}

}  // namespace
}  // namespace muster::coordinator
