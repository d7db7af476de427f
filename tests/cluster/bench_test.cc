// muster-bench as whoever runs it meets it: what it says of wrong options and of programs that fail
// it, and that it leaves nothing behind.
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

TEST_CASE("a benchmark refuses what it cannot measure by code 2 and names what is possible",
          "[cluster][bench]") {
  const std::vector<std::vector<std::string>> wrong = {
      {"allreduce", "--ranks", "0"}, {"schedule", "--rounds", "0"},     {"ps", "--window-ms", "0"},
      {"train", "--rounds", "0"},    {"train", "--loop-seconds", "-1"}, {"train", "--workers", "0"},
      {"train", "--ps", "-1"}};
  for (const auto& arguments : wrong) {
    const RunResult refused = RunProgram("muster-bench", arguments);
    CAPTURE(arguments[0], arguments[1], refused.err);
    CHECK(refused.code == 2);
    CHECK(refused.err.find(arguments[1]) != std::string::npos);
    CHECK(refused.err.find(arguments[2] + " not in range") != std::string::npos);
    CHECK(refused.out.empty());
  }
}

TEST_CASE("figures that could not be written are no success", "[cluster][bench]") {
  const RunResult run =
      RunProgram("/bin/sh", {"-c", MUSTER_BIN "/muster-bench connect --window-ms 1 >/dev/full"});
  CAPTURE(run.err);
  CHECK(run.code == 1);
  CHECK(run.err.find("could not be written to standard output") != std::string::npos);
}

// muster-bench in a folder of its own, where the programs that it starts are scripts.
struct Stage {
  Stage() {
    std::filesystem::copy_file(MUSTER_BIN "/muster-bench", folder / "muster-bench");
    Script("muster-plain-loop", "echo 'a warning of a library' >&2\necho 1000\n");
  }
  void Script(const std::string& name, const std::string& text) const {
    const std::string path = folder.Write(name, "#!/bin/sh\n" + text);
    std::filesystem::permissions(path, std::filesystem::perms::owner_exec,
                                 std::filesystem::perm_options::add);
  }
  RunResult Train() const {
    return RunProgram(folder / "muster-bench", {"train", "--rounds", "1"});
  }
  TempFolder folder;
};

TEST_CASE_METHOD(Stage, "a cluster that cannot be measured is told with its own words",
                 "[cluster][bench]") {
  Script("muster", "echo 'no port is free' >&2\nexit 3\n");

  const RunResult run = Train();

  CAPTURE(run.err);
  CHECK(run.code == 1);
  CHECK(run.err.find("the cluster has ended with exit code 3") != std::string::npos);
  CHECK(run.err.find("no port is free") != std::string::npos);
}

TEST_CASE_METHOD(Stage, "hints and warnings of others are no figures", "[cluster][bench]") {
  // Each look at the job finds it further on.
  Script("muster",
         "here=$(dirname \"$0\")\n"
         "case $1 in\n"
         "up) while [ \"$1\" != --state-dir ]; do shift; done\n"
         "  echo 127.0.0.1:1 > \"$2/address\"\n"
         "  exec sleep 100;;\n"
         "submit) echo 'sent model.pt (3 B)' >&2\n"
         "  echo j-1;;\n"
         "describe) echo 'a warning' >&2\n"
         "  test \"$2\" = j-1 || exit 5\n"
         "  echo >> \"$here/looks\"\n"
         "  step=$(($(wc -l < \"$here/looks\") * 25)) state=RUNNING\n"
         "  test $step -lt 100 || state=SUCCEEDED\n"
         "  echo '{\"state\": \"JOB_STATE_'$state'\", \"spec\": {\"batchSize\": 10},'\n"
         "  echo '\"progress\": {\"step\": \"'$step'\", \"totalSteps\": \"100\"}}';;\n"
         "esac\n");

  const RunResult run = Train();

  CAPTURE(run.out, run.err);
  REQUIRE(run.code == 0);
  const auto report = nlohmann::json::parse(run.out);
  CHECK(report["loop_examples_per_second"]["median"] == 1000.0);
  CHECK(report["cluster_examples_per_second"]["median"] > 0);
  CHECK(report["last_progress"]["step"] == "100");
}

TEST_CASE("a benchmark that is interrupted or killed leaves no files", "[cluster][bench]") {
  for (const int signal : {SIGINT, SIGKILL}) {
    const TempFolder folder;
    const auto files = [&] {
      int count = 0;
      std::error_code gone;  // while it is looked at
      std::filesystem::recursive_directory_iterator at(folder.path(), gone);
      for (; at != std::filesystem::recursive_directory_iterator(); at.increment(gone)) ++count;
      return count;
    };
    auto bench = process::Child::Start({.argv = {MUSTER_BIN "/muster-bench", "ps"},
                                        .environment = {{"TMPDIR", folder.path()}},
                                        .on_line = [](auto, const std::string&) {}});
    REQUIRE(bench.ok());
    // A folder, and a socket in it.
    REQUIRE(Eventually(seconds(60), [&] { return files() >= 2; }));

    CHECK((*bench)->Signal(signal).ok());

    CHECK((*bench)->Wait(seconds(60)).ok());
    CHECK(Eventually(seconds(60), [&] { return files() == 0; }));
  }
}

}  // namespace
}  // namespace muster::testing
