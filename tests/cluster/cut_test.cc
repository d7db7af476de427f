// Programs whose workers are cut off from everybody: each has a network of its own, whose cable is
// pulled and put in again. Skipped, with the reason, where this machine has no such networks.
#include <filesystem>
#include <optional>

#include "tests/cluster/daemon.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/networks.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const std::string kProgram = MUSTER_TEST_PROGRAMS "/servers";
// The lease, and what a loaded machine may add to it.
constexpr std::int64_t kNoticedMs = 4'000;

// A coordinator and a parameter server in the test's network, two workers in one of their own each.
struct CutCluster {
  CutCluster() {
    networks.emplace(2);
    (void)folder.Write("token", "0123456789abcdef0123456789abcdef\n");
    const std::map<std::string, std::string> tcp{{"MUSTER_LINK", "tcp"}};
    const auto start = [&](const std::string& role, const std::string& name,
                           std::vector<std::string> flags, const std::string& host, int pid) {
      flags.emplace_back("--allow-insecure-network");
      daemons.push_back(std::make_unique<Daemon>(
          folder, role, name, flags,
          Daemon::Place{.host = host, .network_of = pid, .environment = tcp}));
    };
    start("coordinator", "coordinator", {}, Networks::Own(), 0);
    address = daemons.front()->Address();
    start("ps", "ps-0", {"--task", "ps:0", "--coordinator", address}, Networks::Own(), 0);
    for (int i = 0; i < 2; ++i) {
      const std::string index = std::to_string(i);
      start("worker", "worker-" + index, {"--task", "worker:" + index, "--coordinator", address},
            Networks::Of(i), networks->pid(i));
    }
    REQUIRE(Eventually(seconds(60), [&] {
      const std::string status = Muster({"status"}).out;
      return status.find("ps:0") != std::string::npos &&
             status.find("worker:0") != std::string::npos &&
             status.find("worker:1") != std::string::npos;
    }));
  }
  ~CutCluster() {
    // Those that are cut off have nobody to take leave of.
    while (!daemons.empty()) {
      daemons.back()->Kill();
      daemons.pop_back();
    }
  }

  RunResult Muster(const std::vector<std::string>& arguments) const {
    return RunProgram("muster", arguments,
                      {{"XDG_RUNTIME_DIR", folder.path()},
                       {"MUSTER_COORDINATOR", address},
                       {"MUSTER_TOKEN_FILE", folder / "token"}});
  }
  std::string Submit(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"submit", "--strategy", "parameter_server", "--", kProgram});
    const RunResult submitted = Muster(arguments);
    return IdIn(submitted);
  }
  std::string Output(const std::string& id) const { return Muster({"logs", id, "chief:0"}).out; }
  bool HasPrinted(const std::string& id, const std::string& line) const {
    return Eventually(seconds(60), [&] { return Output(id).find(line) != std::string::npos; });
  }
  v1::Job Describe(const std::string& id) const {
    return DescribeFrom(Muster({"describe", id, "-o", "json"}));
  }
  // Cuts workers off, and waits until the job says so; how long that took.
  std::int64_t CutAndNotice(const std::string& id, const std::vector<int>& hosts) {
    const int before = CountEvents(Describe(id), "WORKER_LOST");
    const Lateness lateness;
    const std::int64_t cut = NowMs();
    for (const int host : hosts) networks->Cut(host);
    std::int64_t noticed = 0;
    REQUIRE(Eventually(seconds(30), [&] {
      const v1::Job job = Describe(id);
      if (CountEvents(job, "WORKER_LOST") < before + static_cast<int>(hosts.size())) return false;
      for (const v1::Event& event : job.events()) {
        if (event.reason() == "WORKER_LOST") noticed = event.time_ms();
      }
      return true;
    }));
    return noticed - cut - lateness.worst_ms();
  }
  bool AreBack(const std::string& id) const {
    return Eventually(seconds(60), [&] {
      const v1::Job job = Describe(id);
      return CountEvents(job, "WORKER_BACK") == CountEvents(job, "WORKER_LOST");
    });
  }
  int Wait(const std::string& id) const { return Muster({"wait", id, "--timeout", "120s"}).code; }

  TempFolder folder;
  std::optional<Networks> networks;
  std::string address;
  std::vector<std::unique_ptr<Daemon>> daemons;
};

TEST_CASE("closures count once though workers are cut off, one and all, and come back",
          "[cluster][program][cut]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  CutCluster cluster;
  const TempFolder stop;
  const std::string id = cluster.Submit({"rounds", stop / "enough"});
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  CHECK(cluster.CutAndNotice(id, {1}) < kNoticedMs);
  cluster.networks->Mend(1);
  CHECK(cluster.AreBack(id));
  CHECK(cluster.CutAndNotice(id, {0, 1}) < kNoticedMs);
  cluster.networks->Mend(0);
  cluster.networks->Mend(1);
  CHECK(cluster.AreBack(id));
  stop.Write("enough", "");

  const int code = cluster.Wait(id);
  CAPTURE(Story(cluster.Describe(id)), cluster.Output(id));
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("rounds exact") != std::string::npos);
}

TEST_CASE("a worker that is cut off while it builds its data holds no program up",
          "[cluster][program][cut][CCF-06]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  CutCluster cluster;
  const TempFolder gate;
  const std::string id = cluster.Submit({"built", gate.path(), "200"});
  REQUIRE(Eventually(seconds(60), [&] { return ReadAll(gate / "builds").size() == 2; }));
  CHECK(cluster.CutAndNotice(id, {1}) < kNoticedMs);
  gate.Write("gate", "");

  // It never comes back.
  const int code = cluster.Wait(id);
  CAPTURE(Story(cluster.Describe(id)), cluster.Output(id));
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("built exact") != std::string::npos);
}

}  // namespace
}  // namespace muster::testing
