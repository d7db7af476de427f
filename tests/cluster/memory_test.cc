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

}  // namespace
}  // namespace muster::testing
