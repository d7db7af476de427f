// Daemons that nobody starts but the test, wired by TF_CONFIG and by flags.
#include <filesystem>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/cluster/daemon.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

TEST_CASE("settings that do not go together end a daemon for good", "[cluster]") {
  const TempFolder folder;
  const std::string token = folder.Write("token", "0123456789abcdef0123456789abcdef\n");
  const RunResult ended =
      RunProgram("muster-coordinator", {"--listen", "127.0.0.1:0", "--token-file", token,
                                        "--state-dir", folder / "state", "--heartbeat", "9s"});
  CAPTURE(ended.err);
  // 1 would have systemd start it again and again.
  CHECK(ended.code == 78);
  CHECK(ended.err.find("two heartbeats must fit in a lease") != std::string::npos);
}

TEST_CASE("a worker that would kill executors which do nothing wrong does not start", "[cluster]") {
  const TempFolder folder;
  const std::string token = folder.Write("token", "0123456789abcdef0123456789abcdef\n");
  const RunResult ended =
      RunProgram("muster-worker",
                 {"--task", "worker:0", "--listen", "127.0.0.1:0", "--coordinator", "127.0.0.1:1",
                  "--token-file", token, "--state-dir", folder / "state"},
                 {{"MUSTER_STUCK_TIMEOUT", "5ms"}});
  CAPTURE(ended.err);
  CHECK(ended.code == 78);
  CHECK(ended.err.find("MUSTER_STUCK_TIMEOUT: stuck-timeout is 5 ms; give 1s or more") !=
        std::string::npos);
}

TEST_CASE("a coordinator whose database is damaged ends for good, and says which", "[cluster]") {
  const TempFolder folder;
  const std::string token = folder.Write("token", "0123456789abcdef0123456789abcdef\n");
  std::filesystem::create_directory(folder / "state");
  const std::string database = folder.Write("state/coordinator.db", std::string(9'000, 't'));
  const RunResult ended = RunProgram(
      "muster-coordinator",
      {"--listen", "127.0.0.1:0", "--token-file", token, "--state-dir", folder / "state"});
  CAPTURE(ended.err);
  CHECK(ended.code == 78);
  CHECK(ended.err.find(database) != std::string::npos);
}

TEST_CASE("a parameter server that does not come is named, and used when it comes", "[cluster]") {
  const TempFolder folder;
  (void)folder.Write("token", "0123456789abcdef0123456789abcdef\n");
  const SumJob sums(folder, 200, 10, 2, 1);
  // The addresses are of no interest here: --listen weighs more, and tasks register.
  Daemon coordinator(
      folder, "coordinator", "coordinator", {"--ps-wait", "500ms"},
      {.tf_config = R"({"cluster": {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2", "127.0.0.1:3"],
          "worker": ["127.0.0.1:4"]}, "task": {"type": "chief", "index": 0}})"});
  const std::string address = coordinator.Address();
  Daemon worker(folder, "worker", "worker-0", {"--task", "worker:0", "--coordinator", address});
  Daemon ps0(folder, "ps", "ps-0", {"--task", "ps:0", "--coordinator", address});
  const auto muster = [&](const std::vector<std::string>& arguments) {
    return RunProgram("muster", arguments,
                      {{"XDG_RUNTIME_DIR", folder.path()},
                       {"MUSTER_COORDINATOR", address},
                       {"MUSTER_TOKEN_FILE", folder / "token"}});
  };
  REQUIRE(Eventually(seconds(30), [&] {
    const std::string status = muster({"status"}).out;
    return status.find("worker:0") != std::string::npos && status.find("up") != std::string::npos;
  }));

  const RunResult submitted = muster({"submit", "-f", sums.file});
  CAPTURE(submitted.err);
  REQUIRE(submitted.code == 0);
  std::string story;
  CHECK(Eventually(seconds(30), [&] {
    story = muster({"describe", "sums"}).out;
    return story.find("TASKS_MISSING") != std::string::npos;
  }));
  CAPTURE(story);
  CHECK(story.find("WAITING_FOR_TASKS") != std::string::npos);
  CHECK(story.find("still waiting for ps:1 (has never registered); the job is held until they "
                   "come") != std::string::npos);

  Daemon ps1(folder, "ps", "ps-1", {"--task", "ps:1", "--coordinator", address});
  CHECK(muster({"wait", "sums", "--timeout", "60s"}).code == 0);
  REQUIRE(muster({"checkpoints", "export", "sums", "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
  CHECK(worker.Drain() == 0);
  CHECK(ps0.Drain() == 0);
  CHECK(ps1.Drain() == 0);
  CHECK(coordinator.Drain() == 0);
}

TEST_CASE("a worker believes no cache that others may write into", "[cluster]") {
  const TempFolder folder;
  const std::string token = folder.Write("token", "0123456789abcdef0123456789abcdef\n");
  REQUIRE(::chmod(token.c_str(), 0600) == 0);
  const std::vector<std::string> flags{
      "--task",        "worker:0",    "--listen",     "127.0.0.1:0",
      "--coordinator", "127.0.0.1:1", "--token-file", token};
  const auto start = [&](const std::string& cache) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), {"--cache-dir", cache});
    return RunProgram("muster-worker", all, {}, seconds(20));
  };
  const std::string open = folder / "open";
  REQUIRE(::mkdir(open.c_str(), 0700) == 0);
  REQUIRE(::chmod(open.c_str(), 0777) == 0);
  RunResult result = start(open);
  CHECK(result.code == 1);
  CHECK(result.err.find("cache folder: " + open + " has mode 777: others may change it") !=
        std::string::npos);

  const std::string link = folder / "link";
  REQUIRE(::symlink(open.c_str(), link.c_str()) == 0);
  result = start(link);
  CHECK(result.code == 1);
  CHECK(result.err.find(link + " is a link") != std::string::npos);
  // One that a unit with DynamicUser= has is systemd's; what is looked at is the folder.
  result = RunProgram("muster-worker", flags, {{"CACHE_DIRECTORY", link}}, seconds(20));
  CHECK(result.code == 1);
  CHECK(result.err.find("cache folder: " + open + " has mode 777") != std::string::npos);

  // Why the folder above it cannot be made, not that it is missing.
  result = start("/sys/muster/cache");
  CHECK(result.code == 1);
  CHECK(result.err.find("cache folder /sys/muster/cache: ") != std::string::npos);
  CHECK(result.err.find("No such file or directory") == std::string::npos);
}

}  // namespace
}  // namespace muster::testing
