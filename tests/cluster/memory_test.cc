// What the processes of a cluster take, that training does not make it more, and what of it people
// are told.
#include <cstdlib>
#include <fstream>
#include <map>

#include <fmt/core.h>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const std::string kProgram = MUSTER_TEST_PROGRAMS "/servers";

// What a line says, "Name:   123 kB" in a file of /proc/<pid>; 0: no such process.
std::int64_t Kilobytes(int pid, const std::string& file, const std::string& name) {
  std::ifstream stream(fmt::format("/proc/{}/{}", pid, file));
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  }
  return 0;
}

// What a process has of its own: heap, stacks and shared memory. Pages of programs and libraries
// come and go as the system likes.
std::int64_t Own(int pid) {
  return Kilobytes(pid, "smaps_rollup", "Pss_Anon") + Kilobytes(pid, "smaps_rollup", "Pss_Shmem");
}

std::string NameOf(const v1::TaskState& task) {
  return fmt::format("{}:{}", task.task().type(), task.task().index());
}

// What `muster status` says that the job holds, in bytes, by task.
std::map<std::string, std::int64_t> HeldBy(const Cluster& cluster, const std::string& job) {
  std::map<std::string, std::int64_t> held;
  const v1::ClusterStatus status = cluster.Status();
  for (const v1::TaskState& task : status.tasks()) {
    for (const v1::JobBytes& one : task.job_bytes()) {
      if (one.job_id() == job) held[NameOf(task)] += static_cast<std::int64_t>(one.bytes());
    }
  }
  return held;
}

TEST_CASE("daemons are small, and 10,000 steps make nothing grow", "[cluster]") {
  constexpr std::int64_t kIdleLimit = 40 * 1024;
  constexpr std::int64_t kGrowthLimit = 2 * 1024;
  Cluster cluster({.ps = 2, .workers = 2});
  for (const char* task : {"coordinator", "ps:0", "ps:1"}) {
    const std::int64_t resident = Kilobytes(cluster.PidOf(task), "status", "VmRSS");
    CAPTURE(task, resident);
    CHECK(resident > 1024);
    CHECK(resident < kIdleLimit);
  }

  const TempFolder folder;
  const SumJob sums(folder, 1000, 10, 1000, 0);
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 2'000, seconds(60)));
  std::map<std::string, int> pids{{"coordinator", cluster.PidOf("coordinator")}};
  const v1::Job job = cluster.Describe(id);
  for (const v1::TaskState& task : job.tasks()) {
    const std::string name = NameOf(task);
    pids[name] = static_cast<int>(task.pid());
    if (task.task().type() == "worker") {
      REQUIRE(task.executor_pid() != 0);
      pids["executor of " + name] = static_cast<int>(task.executor_pid());
    }
  }
  for (const std::string& process : ProcessesOf(cluster.state())) {
    if (process.find("muster-trainer") != std::string::npos) pids["trainer"] = std::stoi(process);
  }
  CHECK(pids.size() == 8);
  std::map<std::string, std::int64_t> before;
  for (const auto& [name, pid] : pids) before[name] = Own(pid);
  const std::uint64_t first = cluster.Describe(id).progress().step();

  REQUIRE(cluster.WaitForStep(id, first + 10'000, seconds(120)));

  for (const auto& [name, pid] : pids) {
    const std::int64_t after = Own(pid);
    CAPTURE(name, before[name], after);
    CHECK(before[name] > 0);
    CHECK(after > 0);
    CHECK(after < before[name] + kGrowthLimit);
  }
  CHECK(cluster.Muster({"stop", id}).code == 0);
  CHECK(cluster.Wait(id, seconds(60)) == 8);
}

TEST_CASE("what a job's parameters take on servers is free again when the job has ended",
          "[cluster]") {
  // Adam has two slots for each.
  constexpr std::int64_t kParameters = 4'000'000;
  constexpr std::int64_t kBytesOfEach = 3 * kParameters * 4 / 2;
  constexpr std::int64_t kLeftLimit = 2 * 1024;
  Cluster cluster({.ps = 2, .workers = 1});
  std::map<std::string, int> pids;
  std::map<std::string, std::int64_t> before;
  for (const char* const task : {"ps:0", "ps:1"}) {
    pids[task] = cluster.PidOf(task);
    before[task] = Own(pids[task]);
  }
  const TempFolder folder;
  const Work work(folder, 4'000);
  std::string csv = "a\n";
  for (int i = 0; i < 100; ++i) csv += "1\n";
  const std::string id = cluster.Submit(folder.Write(
      "job.yaml", fmt::format(R"(name: large
model:
  parameters:
    w: {{shape: [{}], initializer: ones}}
  forward: |
    def forward(self, a):
{}        return self.w.mean() * a + slow
data:
  csv: {{files: {}, columns: {{a: {{}}}}}}
loss:
  function: |
    def loss(output):
        return (output * output).mean()
optimizer: {{kind: adam, learning_rate: 0.001}}
batch_size: 1
epochs: 1
strategy:
  kind: parameter_server
  partitioner: {{kind: fixed, num_shards: 2}}
)",
                              kParameters, work.Lines("a"), folder.Write("a.csv", csv))));
  REQUIRE(cluster.WaitForStep(id, 1, seconds(60)));
  CHECK(Eventually(seconds(10), [&] {
    std::map<std::string, std::int64_t> held = HeldBy(cluster, id);
    return held["ps:0"] >= kBytesOfEach && held["ps:1"] >= kBytesOfEach;
  }));
  for (const auto& [task, pid] : pids) {
    const std::int64_t held = Own(pid);
    CAPTURE(task, before[task], held);
    CHECK(held > before[task] + kBytesOfEach / 1024);
  }
  CHECK(cluster.Describe(id).ended_ms() == 0);

  work.Set(0);
  REQUIRE(cluster.Wait(id, seconds(120)) == 0);

  CHECK(Eventually(seconds(5), [&] { return HeldBy(cluster, id).empty(); }));
  for (const auto& [task, pid] : pids) {
    std::int64_t left = 0;
    const bool free = Eventually(seconds(5), [&, &task = task, &pid = pid] {
      left = Own(pid) - before[task];
      return left < kLeftLimit;
    });
    CAPTURE(task, before[task], left);
    CHECK(free);
    CHECK(cluster.PidOf(task) == pid);
  }
}

TEST_CASE("what a program holds on servers and workers is told while it runs, and free afterwards",
          "[cluster][program]") {
  constexpr std::int64_t kHeld = 64'000'000;  // servers.cc: of each
  constexpr std::int64_t kLeftLimit = 2 * 1024;
  // The kernel's counters lag.
  constexpr std::int64_t kInexact = 16 * 1024;
  // The budget is also what a server keeps for the next large transfer.
  Cluster cluster({.ps = 1, .workers = 2, .environment = {{"MUSTER_STAGE_BUDGET", "1MiB"}}});
  const int server = cluster.PidOf("ps:0");
  const std::int64_t before = Own(server);
  const TempFolder folder;
  const std::string id = IdIn(cluster.Muster(
      {"submit", "--strategy", "parameter_server", "--", kProgram, "hold", folder / "enough"}));
  std::map<std::string, std::int64_t> held;
  const bool told = Eventually(seconds(60), [&] {
    held = HeldBy(cluster, id);
    return held["ps:0"] >= kHeld && held["worker:0"] >= kHeld && held["worker:1"] >= kHeld;
  });
  CAPTURE(held, cluster.Output(id), cluster.up_log());
  REQUIRE(told);
  CHECK(Own(server) > before + kHeld / 1024);
  std::map<std::string, int> executors;
  const v1::Job job = cluster.Describe(id);
  for (const std::uint32_t worker : {0U, 1U}) {
    const std::string task = fmt::format("worker:{}", worker);
    executors[task] = ExecutorPid(job, worker);
    // What was read while an executor still made its tensor is read again within a second.
    std::int64_t own = 0;
    const bool same = Eventually(seconds(10), [&] {
      own = Own(executors[task]);
      return std::abs(HeldBy(cluster, id)[task] / 1024 - own) < kInexact;
    });
    CAPTURE(task, own);
    CHECK(own > kHeld / 1024);
    CHECK(same);
  }
  const std::string table = cluster.Muster({"status"}).out;
  CAPTURE(table);
  for (const char* const task : {"ps:0", "worker:0", "worker:1"}) {
    CHECK(table.find(fmt::format("\n{}  {}", id, task)) != std::string::npos);
  }

  folder.Write("enough", "");
  REQUIRE(cluster.Wait(id, seconds(60)) == 0);

  CHECK(Eventually(seconds(5), [&] { return HeldBy(cluster, id).empty(); }));
  for (const auto& [task, pid] : executors) {
    CAPTURE(task, pid);
    CHECK(Eventually(seconds(5), [&, &pid = pid] { return Own(pid) == 0; }));
  }
  std::int64_t left = 0;
  const bool free = Eventually(seconds(5), [&] {
    left = Own(server) - before;
    return left < kLeftLimit;
  });
  CAPTURE(left);
  CHECK(free);
}

TEST_CASE("a million closures that write leave nothing behind in any process of the cluster",
          "[cluster][program]") {
  constexpr int kClosures = 1'000'000;
  // The least that a closure could leave is a pointer or a number: 8 bytes of each of 800,000 are
  // 6.1 MiB, and 3.05 MiB in the executor that runs at least half of them. What comes and goes with
  // buffers, queues and the allocator's pages was below 0.3 MiB, also in three times as many. Of a
  // result that was held it is 80 bytes of each of 40,000, of a pass over per-worker data 4 KiB of
  // each of 800.
  constexpr std::int64_t kGrowthLimit = 3 * 1024;
  constexpr seconds kLimit{240};
  Cluster cluster({.ps = 1, .workers = 2});
  const TempFolder folder;
  const std::string id =
      IdIn(cluster.Muster({"submit", "--strategy", "parameter_server", "--", kProgram, "million",
                           folder.path(), std::to_string(kClosures)}));
  const auto printed = [&](const std::string& text) {
    return Eventually(kLimit, [&] { return cluster.Output(id).find(text) != std::string::npos; });
  };
  CAPTURE(cluster.up_log());
  REQUIRE(printed("a fifth"));
  const v1::Job job = cluster.Describe(id);
  std::map<std::string, int> pids{{"coordinator", cluster.PidOf("coordinator")}};
  for (const v1::TaskState& task : job.tasks()) {
    pids[NameOf(task)] = static_cast<int>(task.pid());
    if (task.task().type() == "worker") {
      REQUIRE(task.executor_pid() != 0);
      pids["executor of " + NameOf(task)] = static_cast<int>(task.executor_pid());
    }
  }
  const v1::Event* const running = FindEvent(job, "JOB_RUNNING");
  REQUIRE(running != nullptr);
  pids["driver"] = static_cast<int>(Field(*running, "pid"));
  CHECK(pids.size() == 7);
  std::map<std::string, std::int64_t> before;
  for (const auto& [name, pid] : pids) before[name] = Own(pid);
  folder.Write("fifth", "");

  REQUIRE(printed("all"));

  for (const auto& [name, pid] : pids) {
    const std::int64_t after = Own(pid);
    CAPTURE(name, before[name], after);
    CHECK(before[name] > 0);
    CHECK(after > 0);
    CHECK(after < before[name] + kGrowthLimit);
  }
  folder.Write("all", "");
  const int code = cluster.Wait(id, kLimit);
  CAPTURE(cluster.Output(id), Story(cluster.Describe(id)));
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("million exact") != std::string::npos);
}

}  // namespace
}  // namespace muster::testing
