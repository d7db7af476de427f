// What happens between hosts: names and both kinds of addresses, networks that part and lose in one
// direction, hosts that come back elsewhere, that reboot, whose clocks are wrong. Each host is a
// network, mounts and a name of its own (hosts.h), behind TLS. Skipped, with the reason, where this
// machine has no such hosts.
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "tests/cluster/hosted_cluster.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

bool CannotRun() {
  const std::string why = Hosts::WhyNot();
  if (!why.empty()) WARN("skipped: " << why);
  return !why.empty();
}

// Some ten seconds of integers; what came out is exact or wrong. A checkpoint now and then.
struct Sums {
  explicit Sums(int epochs = 30)
      : job(folder, 1'000, 10, epochs, 400, "checkpoint: {every_steps: 200}\n") {}

  // The job ends well, and every update has been applied exactly once.
  void MustEndExact(const HostedCluster& cluster, const std::string& id) const {
    // Those that came back take part in it, and then there is nothing more to wait for.
    CHECK(cluster.WaitForStep(id, cluster.Describe(id).progress().step() + 100));
    job.Hurry();
    const int code = cluster.Wait(id);
    INFO(cluster.Logs());
    INFO(Story(cluster.Describe(id)));
    REQUIRE(code == 0);
    REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
    CHECK(ReadSafetensors(folder / "w").at("w") == job.expected);
  }

  const TempFolder folder;
  const SumJob job;
};

// How many steps the job has lost by going back.
std::int64_t StepsLost(const v1::Job& job) {
  std::int64_t lost = 0;
  for (const v1::Event& event : job.events()) {
    if (event.reason() == "JOB_RESTORED") lost += Field(event, "steps_lost");
  }
  return lost;
}

TEST_CASE("hosts that know each other by name train together, by IPv4, by IPv6 and by both",
          "[cluster][hosts]") {
  if (CannotRun()) return;
  const auto family = GENERATE(Hosts::Family::kV4, Hosts::Family::kV6, Hosts::Family::kBoth);
  CAPTURE(static_cast<int>(family));
  const HostedCluster cluster({.family = family});
  const Sums sums(5);

  const std::string id = cluster.Submit(sums.job.file);

  sums.MustEndExact(cluster, id);
  // Each has told the name of its host, and where it listens by that name.
  const std::string status = cluster.Muster({"status", "-o", "json"}).out;
  CAPTURE(status);
  CHECK(status.find("\"node-1\"") != std::string::npos);
}

TEST_CASE("a partition stops training, and when it ends nothing has been lost",
          "[cluster][hosts]") {
  if (CannotRun()) return;
  const HostedCluster cluster;
  const Sums sums;
  const std::string id = cluster.Submit(sums.job.file);
  REQUIRE(cluster.WaitForStep(id, 300));

  cluster.hosts.Part({"chief", "node-0", "desk"}, {"node-1"});

  REQUIRE(cluster.WaitForEvent(id, "PS_LOST"));
  REQUIRE(cluster.WaitForEvent(id, "WORKER_LOST"));
  cluster.hosts.LoseNothing();
  REQUIRE(cluster.WaitForEvent(id, "PS_BACK"));
  const v1::Job back = cluster.Describe(id);
  CHECK(FindEvent(back, "PS_BACK")->fields().at("same_process") == "true");
  sums.MustEndExact(cluster, id);
  CHECK(StepsLost(cluster.Describe(id)) == 0);
}

TEST_CASE("who is heard and does not hear, or hears and is not heard, costs no update",
          "[cluster][hosts]") {
  if (CannotRun()) return;
  struct Direction {
    const char* from;
    const char* to;
    const char* noticed;
  };
  const auto lost = GENERATE(Direction{"node-0", "chief", "WORKER_LOST"},
                             Direction{"chief", "node-0", "WORKER_LOST"},
                             Direction{"node-0", "node-1", "PEER_UNREACHABLE"});
  CAPTURE(lost.from, lost.to);
  const HostedCluster cluster;
  const Sums sums;
  const std::string id = cluster.Submit(sums.job.file);
  REQUIRE(cluster.WaitForStep(id, 300));

  cluster.hosts.Lose(lost.from, lost.to);

  const bool noticed = cluster.WaitForEvent(id, lost.noticed);
  {
    INFO(Story(cluster.Describe(id)));
    CHECK(noticed);
  }
  cluster.hosts.LoseNothing();
  sums.MustEndExact(cluster, id);
}

TEST_CASE("a parameter server comes back under another address of the same name",
          "[cluster][hosts]") {
  if (CannotRun()) return;
  HostedCluster cluster;
  const Sums sums;
  const std::string id = cluster.Submit(sums.job.file);
  REQUIRE(cluster.WaitForStep(id, 300));
  const std::string before = cluster.hosts.V4("node-1");

  // The whole host moves: its worker keeps trying from the new address, its server begins anew.
  cluster.Kill("ps:1");
  cluster.hosts.Readdress("node-1");
  cluster.Start("ps:1");

  REQUIRE(cluster.WaitForEvent(id, "PS_BACK"));
  sums.MustEndExact(cluster, id);
  CHECK(cluster.hosts.V4("node-1") != before);
  CHECK(cluster.Logs().find("data plane on " + cluster.hosts.V4("node-1")) != std::string::npos);
}

TEST_CASE("a coordinator comes back under another address of the same name, and is found in 15 s",
          "[cluster][hosts]") {
  if (CannotRun()) return;
  HostedCluster cluster;
  const Sums sums;
  const std::string id = cluster.Submit(sums.job.file);
  REQUIRE(cluster.WaitForStep(id, 300));
  std::map<std::string, std::uint64_t> sessions;
  for (const std::string& task : HostedCluster::Tasks()) sessions[task] = cluster.SessionOf(task);

  cluster.Kill("chief:0");
  cluster.hosts.Readdress("chief");
  cluster.Start("chief:0");

  const auto begin = steady_clock::now();
  for (const std::string& task : HostedCluster::Tasks()) {
    if (task == "chief:0") continue;
    CAPTURE(task);
    CHECK(cluster.IsUp(task, sessions[task]));
  }
  const auto took = std::chrono::duration_cast<seconds>(steady_clock::now() - begin);
  CHECK(took < seconds(15));
  sums.MustEndExact(cluster, id);
  const v1::Job job = cluster.Describe(id);
  INFO(Story(job));
  CHECK(FindEvent(job, "VIEW_ADOPTED") != nullptr);
  CHECK(StepsLost(job) == 0);
}

TEST_CASE("a host that reboots takes all its daemons along, and the job goes on when it is back",
          "[cluster][hosts]") {
  if (CannotRun()) return;
  HostedCluster cluster;
  const Sums sums;
  const std::string id = cluster.Submit(sums.job.file);
  REQUIRE(cluster.WaitForStep(id, 500));

  // Its kernel tells nobody that connections have ended.
  cluster.hosts.Cut("node-1");
  cluster.Kill("ps:1");
  cluster.Kill("worker:1");

  REQUIRE(cluster.WaitForEvent(id, "PS_LOST"));
  REQUIRE(cluster.WaitForEvent(id, "WORKER_LOST"));
  cluster.hosts.Mend("node-1");
  cluster.Start("ps:1");
  cluster.Start("worker:1");
  REQUIRE(cluster.WaitForEvent(id, "PS_BACK"));
  sums.MustEndExact(cluster, id);
  const v1::Job job = cluster.Describe(id);
  INFO(Story(job));
  REQUIRE(FindEvent(job, "JOB_RESTORED") != nullptr);
  CHECK(Field(*FindEvent(job, "JOB_RESTORED"), "step") >= 200);
}

TEST_CASE("every daemon is restarted under a job, one after another, and no step is lost",
          "[cluster][hosts]") {
  if (CannotRun()) return;
  HostedCluster cluster;
  const Sums sums(120);
  const std::string id = cluster.Submit(sums.job.file);
  REQUIRE(cluster.WaitForStep(id, 300));

  for (const std::string& task : HostedCluster::Tasks()) {
    CAPTURE(task);
    const std::uint64_t before = cluster.SessionOf(task);
    CHECK(cluster.Drain(task) == 0);
    cluster.Start(task);
    // The next one has its turn when the job trains again.
    if (task != "chief:0") REQUIRE(cluster.IsUp(task, before));
    const std::uint64_t step = cluster.Describe(id).progress().step();
    REQUIRE(cluster.WaitForStep(id, step + 50));
  }

  const v1::Job running = cluster.Describe(id);
  INFO(Story(running));
  CHECK(running.ended_ms() == 0);  // else some of them were restarted for nobody
  sums.MustEndExact(cluster, id);
  CHECK(StepsLost(cluster.Describe(id)) == 0);
}

TEST_CASE("clocks that are an hour wrong change nothing but the times that are shown",
          "[cluster][hosts]") {
  if (CannotRun()) return;
  const auto clock = [](int skew) {
    return std::map<std::string, std::string>{{"LD_PRELOAD", MUSTER_SKEWED_CLOCK_LIBRARY},
                                              {"MUSTER_CLOCK_SKEW", std::to_string(skew)}};
  };
  constexpr int kHour = 3'600;
  HostedCluster cluster({.environment = {{"chief", clock(kHour)}, {"node-0", clock(-kHour)}}});
  const Sums sums;
  const std::string id = cluster.Submit(sums.job.file);
  REQUIRE(cluster.WaitForStep(id, 300));
  const v1::Job begun = cluster.Describe(id);
  // It is shown, so the library works.
  CHECK(begun.submitted_ms() > NowMs() + (kHour - 60) * 1'000LL);

  // A loss is noticed by clocks that only go on.
  const auto killed = steady_clock::now();
  cluster.hosts.Cut("node-0");
  CHECK(cluster.WaitForEvent(id, "WORKER_LOST"));
  const auto noticed = std::chrono::duration_cast<seconds>(steady_clock::now() - killed);
  CHECK(noticed < seconds(20));
  cluster.hosts.Mend("node-0");
  CHECK(cluster.WaitForEvent(id, "WORKER_BACK"));
  // The next coordinator's clock is two hours behind that of the one before it.
  cluster.Set("chief", "MUSTER_CLOCK_SKEW", std::to_string(-kHour));
  cluster.Kill("chief:0");
  cluster.Start("chief:0");
  CHECK(cluster.WaitForEvent(id, "COORDINATOR_RESTARTED"));

  sums.MustEndExact(cluster, id);
  const v1::Job job = cluster.Describe(id);
  INFO(Story(job));
  CHECK(FindEvent(job, "VIEW_ADOPTED") != nullptr);
  CHECK(StepsLost(job) == 0);
}

}  // namespace
}  // namespace muster::testing
