// What the code of a job can do to its executors, and other data under a running job: found, named,
// and nobody else is hurt.
#include <csignal>
#include <cstdio>
#include <fstream>

#include <fmt/core.h>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

// One parameter over a column "a" of the numbers 1 to 400; record 350 is 0.
std::string Job(const TempFolder& folder, const std::string& body, int batch = 10) {
  std::string csv = "a\n";
  for (int i = 1; i <= 400; ++i) csv += fmt::format("{}\n", i == 350 ? 0 : i);
  return folder.Write("job.yaml", fmt::format(R"(model:
  parameters:
    w: {{shape: [1], initializer: ones}}
  forward: |
    def forward(self, a):
{}
data:
  csv: {{files: {}, columns: {{a: {{}}}}}}
  shuffle: false
loss:
  function: |
    def loss(output):
        return (output * output).mean()
optimizer: {{kind: sgd, learning_rate: 0.0000001}}
batch_size: {}
epochs: 3
)",
                                              body, folder.Write("a.csv", csv), batch));
}

std::string Logs(const Cluster& cluster, const std::string& id) {
  return cluster.Muster({"logs", id}).out;
}

TEST_CASE("a closure that crashes its executor is found, and named with records and signal",
          "[cluster]") {
  const TempFolder folder;
  Cluster cluster({.ps = 1, .workers = 2});
  // A remainder by zero of plain integers is SIGFPE.
  const std::string id = cluster.Submit(Job(folder, R"(        n = int(a.min())
        if n < 342:
            print("the smallest is", n)
        return self.w * a * float(7 % n))"),
                                        "crash");
  CHECK(cluster.Wait(id, seconds(90)) == 1);

  const v1::Job job = cluster.Describe(id);
  const std::string logs = Logs(cluster, id);
  CAPTURE(Story(job), job.error().message(), logs);
  CHECK(CountEvents(job, "EXECUTOR_LOST") <= 5);
  const v1::Event* poison = FindEvent(job, "POISON_CLOSURE");
  REQUIRE(poison != nullptr);
  CHECK(Field(*poison, "closure") % 40 == 35);  // of one of the three epochs
  CHECK(job.error().message().find("signal SIG") != std::string::npos);
  CHECK(job.error().message().find(folder / "a.csv") != std::string::npos);
  CHECK(job.error().message().find("records 341-350 of") != std::string::npos);
  // What it printed just before is in the log, and on nobody's conscience.
  CHECK(logs.find("the smallest is 0") != std::string::npos);
  CHECK(FindEvent(job, "WORKER_LOST") == nullptr);
}

TEST_CASE("a step that loops for ever ends the job within three step timeouts", "[cluster]") {
  const TempFolder folder;
  Cluster cluster({.ps = 1,
                   .workers = 2,
                   .environment = {{"MUSTER_STUCK_TIMEOUT", "3s"}, {"MUSTER_STEP_TIMEOUT", "4s"}}});
  const std::string id = cluster.Submit(Job(folder, R"(        n = int(a.min())
        k = 0
        while n == 0:
            k = k + int(a.max())
        return self.w * a + float(k))"),
                                        "loop");
  CHECK(cluster.Wait(id, seconds(90)) == 1);

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), job.error().message());
  // The record is in a closure of each of the three epochs, and the third time of one of them
  // decides; the others may have come as far as twice.
  CHECK(CountEvents(job, "EXECUTOR_STUCK") <= 7);
  // The closure is of one of the three epochs.
  const v1::Event* poison = FindEvent(job, "POISON_CLOSURE");
  REQUIRE(poison != nullptr);
  CHECK(Field(*poison, "closure") % 40 == 35);
  CHECK(job.error().message().find("no answer within the step limit") != std::string::npos);
  CHECK(job.error().message().find("records 341-350 of") != std::string::npos);
}

TEST_CASE("data that is replaced under a running job fails it, and names the file", "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 2000, 10, 10, 400, "checkpoint: {every_steps: 300}\n");
  Cluster cluster({.ps = 1, .workers = 2});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 200, seconds(60)));

  // As many records, as long, other numbers.
  std::string csv = ReadAll(folder / "sums.csv");
  const std::size_t at = csv.find('\n') + 1;
  csv[at] = csv[at] == '1' ? '2' : '1';
  REQUIRE(std::rename(folder.Write("other.csv", csv).c_str(), (folder / "sums.csv").c_str()) == 0);
  int pid = 0;
  const v1::Job running = cluster.Describe(id);
  for (const v1::TaskState& task : running.tasks()) {
    if (task.executor_pid() != 0) pid = static_cast<int>(task.executor_pid());
  }
  REQUIRE(pid != 0);
  REQUIRE(::kill(pid, SIGKILL) == 0);

  CHECK(cluster.Wait(id, seconds(60)) == 1);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), job.error().message());
  CHECK(job.error().code() == 15);
  CHECK(job.error().message().find((folder / "sums.csv") + " on host") != std::string::npos);
  CHECK(job.error().message().find("last written") != std::string::npos);
}

TEST_CASE("a forward that prints without end costs neither its daemon's lease nor memory",
          "[cluster]") {
  const TempFolder folder;
  Cluster cluster({.ps = 1, .workers = 1});
  const std::string id = cluster.Submit(Job(folder, R"(        for i in range(100000):
            print("line", i, "of a program that prints and prints")
        return self.w * a)",
                                            100),
                                        "prints");
  const int worker = cluster.PidOf("worker:0");
  CHECK(cluster.Wait(id, seconds(120)) == 0);

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(FindEvent(job, "WORKER_LOST") == nullptr);
  CHECK(cluster.PidOf("worker:0") == worker);
  const std::string logs = Logs(cluster, id);
  CHECK(logs.find("lines dropped: too many at once") != std::string::npos);
  CHECK(logs.find("line 99999 of a program") != std::string::npos);  // the newest are kept
  CHECK(logs.size() < 20 << 20);
  std::ifstream status(fmt::format("/proc/{}/status", worker));
  std::int64_t peak_kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) peak_kib = std::stoll(line.substr(6));
  }
  CAPTURE(peak_kib);
  CHECK(peak_kib > 0);
  CHECK(peak_kib < 100 << 10);
}

}  // namespace
}  // namespace muster::testing
