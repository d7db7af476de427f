// `muster up`: dead daemons come back, nothing is left behind.
#include <csignal>
#include <string>
#include <utility>

#include "common/process/child.h"
#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

TEST_CASE("up drains on SIGTERM with code 0 and leaves nothing", "[cluster]") {
  Cluster cluster;
  CHECK(cluster.Status().tasks_size() == 5);
  CHECK_FALSE(ProcessesOf(cluster.state()).empty());

  CHECK(cluster.Drain() == 0);

  CHECK(ProcessesOf(cluster.state()).empty());
  CHECK(cluster.Muster({"jobs"}).code == 6);
}

TEST_CASE("up drains at the end of its terminal, of which it is told twice", "[cluster]") {
  Cluster cluster({.ps = 1, .workers = 1});
  REQUIRE(::kill(cluster.up_pid(), SIGHUP) == 0);
  REQUIRE(Eventually(seconds(10),
                     [&] { return cluster.up_log().find("draining") != std::string::npos; }));

  CHECK(cluster.Drain(SIGHUP) == 0);

  CHECK(ProcessesOf(cluster.state()).empty());
}

TEST_CASE("up drains when nobody reads what it says", "[cluster]") {
  const TempFolder folder;
  const std::string state = folder / "state", pid = folder / "pid", code = folder / "code";
  const std::string gone = folder / "gone";
  process::Child::Options options;
  options.argv = {"/bin/sh",
                  "-c",
                  "(\"$0\" up --ps 1 --workers 1 --state-dir \"$1\" & echo $! >\"$2\"; wait $!; "
                  "echo $? >\"$3\") 2>&1 | (sed /^ready/q >/dev/null; exec <&-; echo >\"$4\")",
                  std::string(MUSTER_BIN) + "/muster",
                  state,
                  pid,
                  code,
                  gone};
  options.environment = {{"XDG_RUNTIME_DIR", folder.path()}};
  const auto shell = process::Child::Start(std::move(options));
  REQUIRE(shell.ok());
  REQUIRE(Eventually(seconds(90), [&] { return !ReadAll(gone).empty(); }));

  REQUIRE(::kill(std::stoi(ReadAll(pid)), SIGTERM) == 0);

  CHECK(Eventually(seconds(60), [&] { return !ReadAll(code).empty(); }));
  CHECK(ReadAll(code) == "0\n");
  // The shell, which names the folder, too.
  CHECK(Eventually(seconds(5), [&] { return ProcessesOf(state).empty(); }));
}

TEST_CASE("up ends with a daemon that cannot start, and with its last words", "[cluster]") {
  const TempFolder folder;
  const RunResult up =
      RunProgram("muster", {"up", "--ps", "1", "--workers", "1", "--state-dir", folder / "state"},
                 {{"XDG_RUNTIME_DIR", folder.path()}, {"MUSTER_WARM_EXECUTOR", "maybe"}});
  CAPTURE(up.err);
  CHECK(up.code == 1);
  CHECK(up.err.find("worker:0 ended with exit code 78 before all had registered\n  | ") !=
        std::string::npos);
  CHECK(up.err.find("MUSTER_WARM_EXECUTOR") != std::string::npos);
}

TEST_CASE("each daemon that is killed is started again, the coordinator where it was",
          "[cluster]") {
  Cluster cluster({.ps = 1, .workers = 1});
  for (const char* task : {"worker:0", "ps:0", "coordinator"}) {
    CAPTURE(task);
    const int before = cluster.PidOf(task);
    REQUIRE(cluster.Kill(task, SIGKILL));
    CHECK(Eventually(seconds(20), [&] {
      if (cluster.Muster({"status"}).code != 0) return false;
      const int now = cluster.PidOf(task);
      return now != 0 && now != before;
    }));
  }
  CHECK(Eventually(seconds(20),
                   [&] { return cluster.PidOf("worker:0") != 0 && cluster.PidOf("ps:0") != 0; }));
}

TEST_CASE("with --no-restart the dead stay dead", "[cluster]") {
  Cluster cluster({.ps = 1, .workers = 1, .more = {"--no-restart"}});
  REQUIRE(cluster.Kill("worker:0", SIGKILL));
  CHECK(Eventually(seconds(10), [&] {
    return cluster.up_log().find("ended with signal SIGKILL; it stays down") != std::string::npos;
  }));
  CHECK(cluster.up_log().find("runs again") == std::string::npos);
}

TEST_CASE("daemons die with an up that is killed", "[cluster]") {
  Cluster cluster({.ps = 1, .workers = 1});

  cluster.KillUp();

  CHECK(Eventually(seconds(5), [&] { return ProcessesOf(cluster.state()).empty(); }));
  CHECK(cluster.Muster({"jobs"}).code == 6);
}

TEST_CASE("a state folder belongs to one up at a time", "[cluster]") {
  Cluster cluster({.ps = 1, .workers = 1});
  CHECK(cluster.Muster({"up", "--state-dir", cluster.state()}).code == 4);
}

}  // namespace
}  // namespace muster::testing
