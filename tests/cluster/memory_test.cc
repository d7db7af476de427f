// What the processes of a cluster take, and that training does not make it more.
#include <fstream>
#include <map>

#include <fmt/core.h>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

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
    const std::string name = fmt::format("{}:{}", task.task().type(), task.task().index());
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
  constexpr std::uint64_t kParameters = 4'000'000;
  constexpr std::uint64_t kBytesOfEach = 3 * kParameters * sizeof(float) / 2;
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
  // How many servers say that they hold at least so much of it.
  const auto holders = [&](std::uint64_t bytes) {
    const v1::ClusterStatus status = cluster.Status();
    int count = 0;
    for (const v1::TaskState& task : status.tasks()) {
      for (const v1::JobBytes& held : task.job_bytes()) {
        if (held.job_id() == id && held.bytes() >= bytes) ++count;
      }
    }
    return count;
  };
  REQUIRE(cluster.WaitForStep(id, 1, seconds(60)));
  CHECK(Eventually(seconds(10), [&] { return holders(kBytesOfEach) == 2; }));
  for (const auto& [task, pid] : pids) {
    const std::int64_t held = Own(pid);
    CAPTURE(task, before[task], held);
    CHECK(held > before[task] + static_cast<std::int64_t>(kBytesOfEach / 1024));
  }
  CHECK(cluster.Describe(id).ended_ms() == 0);

  work.Set(0);
  REQUIRE(cluster.Wait(id, seconds(120)) == 0);

  CHECK(Eventually(seconds(5), [&] { return holders(0) == 0; }));
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

}  // namespace
}  // namespace muster::testing
