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

// The fewest closures that it takes. What the figures are is the machine's affair.
TEST_CASE("closures are measured and each figure has its place in the report", "[cluster][bench]") {
  // Its cluster is nobody else's.
  const TempFolder folder;
  const RunResult run =
      RunProgram("muster-bench", {"schedule", "--rounds", "1", "--closures", "1000"},
                 {{"XDG_RUNTIME_DIR", folder.path()}, {"TF_CONFIG", ""}});

  CAPTURE(run.out, run.err);
  REQUIRE(run.code == 0);
  const auto report = nlohmann::json::parse(run.out);
  CHECK(report.at("benchmark") == "schedule");
  CHECK(report.at("rounds") == 1);
  CHECK(report.at("closures") == 1'000);
  CHECK_FALSE(report.at("method").get<std::string>().empty());
  for (const char* const kind : {"unix", "tcp"}) {
    const auto& link = report.at("throughput").at(kind);
    CAPTURE(kind);
    for (const char* const of : {"median", "least", "most"}) {
      CHECK(link.at("closures_per_second").at(of) > 0);
    }
    CHECK(link.at("per_bare_round_trip") > 0);
    for (const char* const who : {"driver_user", "driver_system", "executors"}) {
      CHECK(link.at("cpu_ns_per_closure").at(who).is_number());
    }
  }
  for (const char* const what :
       {"blocking", "spinning", "ping_pong_blocking", "ping_pong_spinning"}) {
    CAPTURE(what);
    CHECK(report.at("latency_us").at(what).at("median") > 0);
  }
  CHECK(report.at("dispatcher_alone_ns").at("median") > 0);
  CHECK(report.at("memory").at("closures") > 0);
  CHECK(report.at("bytes").at("100 MB").at("tcp value GB/s") > 0);
  // Everything that a cluster needs is built.
  REQUIRE(report.at("api").is_object());
  CHECK(report.at("api").at("closures_per_second").at("median") > 0);
  CHECK(report.at("api").at("of_the_driver_alone") > 0);
  CHECK(report.at("api").at("schedule_and_fetch_us").at("median") > 0);
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
