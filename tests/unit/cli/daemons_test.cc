#include "cli/up/daemons.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::cli {
namespace {

using std::chrono::milliseconds;

TEST_CASE("early deaths rest longer and longer, a long life forgives", "[cli][unit]") {
  Backoff backoff;
  CHECK(backoff.Next(milliseconds(0)) == milliseconds(200));
  CHECK(backoff.Next(milliseconds(0)) == milliseconds(400));
  for (int i = 0; i < 20; ++i) (void)backoff.Next(milliseconds(0));
  CHECK(backoff.Next(milliseconds(0)) == milliseconds(10'000));
  CHECK(backoff.Next(milliseconds(30'000)) == milliseconds(200));
}

TEST_CASE("a daemon that worked for ten times its last rest is started again at once",
          "[cli][unit]") {
  Backoff backoff;
  for (int i = 0; i < 3; ++i) CHECK(backoff.Next(milliseconds(6'000)) == milliseconds(200));
  CHECK(backoff.Next(milliseconds(4'000)) == milliseconds(400));
  CHECK(backoff.Next(milliseconds(4'000)) == milliseconds(800));
  CHECK(backoff.Next(milliseconds(4'000)) == milliseconds(1'600));
  CHECK(backoff.Next(milliseconds(15'000)) == milliseconds(3'200));
  CHECK(backoff.Next(milliseconds(30'000)) == milliseconds(200));
}

// Shell scripts as daemons.
struct DaemonsFixture {
  DaemonPlan Script(const std::string& task, const std::string& script) {
    return {.task = task, .argv = {"/bin/sh", "-c", script}, .log_file = folder / task};
  }
  std::string Log(const std::string& task) {
    std::ifstream stream(folder / task);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  Daemons::Options Options(bool restart = true) {
    return {.restart = restart,
            .grace = milliseconds(2000),
            .say = [this](const std::string& text) { said += text + "\n"; },
            .on_death =
                [this](const std::string& task, int, const process::Exit& exit) {
                  deaths.push_back(task + " by " + exit.ToString());
                },
            .on_line = {}};
  }
  // Polls until `done`, at most ten seconds.
  template <class Done>
  bool PollUntil(Daemons& daemons, Done done) {
    const auto begin = std::chrono::steady_clock::now();
    while (!done()) {
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(10)) return false;
      daemons.Poll(milliseconds(20));
    }
    return true;
  }

  ThreadScheduler clock;
  const muster::testing::TempFolder folder;
  std::string said;
  std::vector<std::string> deaths;
};

TEST_CASE_METHOD(DaemonsFixture, "a daemon that dies is started again", "[cli][unit]") {
  Daemons daemons(Options(), clock);
  REQUIRE(daemons.Start(Script("ps:0", "echo here; exit 1")).ok());

  CHECK(PollUntil(daemons, [&] { return said.find("ps:0 runs again") != std::string::npos; }));
  CHECK_FALSE(daemons.Dead());

  CHECK(said.find("ended with exit code 1; starting it again in 200 ms") != std::string::npos);
  CHECK(Log("ps:0").starts_with("here\n"));
  CHECK(deaths.at(0) == "ps:0 by exit code 1");
}

TEST_CASE_METHOD(DaemonsFixture, "a daemon that cannot be started again at once is tried on",
                 "[cli][unit]") {
  const std::string program = folder / "program";
  std::ofstream(program) << "#!/bin/sh\nexit 1\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  Daemons daemons(Options(), clock);
  REQUIRE(daemons.Start({.task = "ps:0", .argv = {program}, .log_file = folder / "log"}).ok());
  REQUIRE(PollUntil(daemons, [&] { return said.find("starting it again") != std::string::npos; }));
  std::filesystem::rename(program, program + ".away");

  CHECK(PollUntil(daemons, [&] { return said.find("cannot start ps:0") != std::string::npos; }));
  std::filesystem::rename(program + ".away", program);

  CHECK(PollUntil(daemons, [&] { return said.find("ps:0 runs again") != std::string::npos; }));
}

TEST_CASE_METHOD(DaemonsFixture, "bad flags and --no-restart leave a daemon dead", "[cli][unit]") {
  Daemons daemons(Options(), clock);
  REQUIRE(daemons.Start(Script("ps:0", "echo no such flag; exit 78")).ok());
  CHECK(PollUntil(daemons, [&] { return said.find("it stays down") != std::string::npos; }));
  CHECK(daemons.Ended("ps:0")->code == 78);
  CHECK(daemons.LastLines("ps:0") == std::vector<std::string>{"no such flag"});
  CHECK(daemons.Dead() == "ps:0");

  Daemons once(Options(/*restart=*/false), clock);
  said.clear();
  REQUIRE(once.Start(Script("ps:1", "exit 1")).ok());
  CHECK(PollUntil(once, [&] { return said.find("ps:1") != std::string::npos; }));
  CHECK(said.find("it stays down") != std::string::npos);
}

TEST_CASE_METHOD(DaemonsFixture, "draining is SIGTERM for all, and SIGKILL for the stubborn",
                 "[cli][unit]") {
  Daemons::Options options = Options();
  options.grace = milliseconds(500);
  Daemons daemons(options, clock);
  const std::string polite = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done";
  REQUIRE(daemons.Start(Script("worker:0", polite)).ok());
  REQUIRE(
      daemons.Start(Script("ps:0", "trap '' TERM; echo up; while :; do sleep 0.05; done")).ok());
  REQUIRE(PollUntil(daemons, [&] { return Log("worker:0") == "up\n" && Log("ps:0") == "up\n"; }));

  CHECK_FALSE(daemons.Drain());

  CHECK(daemons.Ended("worker:0")->ok());
  CHECK(daemons.Ended("ps:0")->signal == SIGKILL);
  CHECK(said.find("ps:0 has not drained") != std::string::npos);
}

TEST_CASE_METHOD(DaemonsFixture, "a daemon that is ended before it can hear of it has drained",
                 "[cli][unit]") {
  Daemons daemons(Options(), clock);
  REQUIRE(daemons.Start(Script("ps:0", "echo up; exec sleep 100")).ok());
  REQUIRE(PollUntil(daemons, [&] { return Log("ps:0") == "up\n"; }));

  CHECK(daemons.Drain());

  CHECK(daemons.Ended("ps:0")->signal == SIGTERM);
  CHECK(said.empty());
}

TEST_CASE_METHOD(DaemonsFixture, "a daemon that stays down has not drained", "[cli][unit]") {
  Daemons daemons(Options(), clock);
  REQUIRE(daemons.Start(Script("ps:0", "exit 78")).ok());
  REQUIRE(PollUntil(daemons, [&] { return daemons.Dead().has_value(); }));

  CHECK_FALSE(daemons.Drain());
}

TEST_CASE_METHOD(DaemonsFixture, "a daemon that ended by itself is not said to have ended draining",
                 "[cli][unit]") {
  Daemons daemons(Options(), clock);
  REQUIRE(daemons.Start(Script("coordinator", "exit 3")).ok());
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!daemons.Ended("coordinator") && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }

  CHECK_FALSE(daemons.Drain());

  CHECK(said.find("coordinator ended with exit code 3 before it was asked to drain") == 0);
}

// A sanitizer sees who writes into what has gone.
TEST_CASE_METHOD(DaemonsFixture, "daemons that write are ended before what they write into",
                 "[cli][unit]") {
  for (int i = 0; i < 5; ++i) {
    Daemons daemons(Options(), clock);
    REQUIRE(daemons.Start(Script("ps:0", "while :; do echo line; done")).ok());
    REQUIRE(PollUntil(daemons, [&] { return !daemons.LastLines("ps:0").empty(); }));
  }
  CHECK(Log("ps:0").starts_with("line\n"));
}

}  // namespace
}  // namespace muster::cli
