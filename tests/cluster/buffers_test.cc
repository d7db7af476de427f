// Archives with values beside their variables, and executors that stand still.
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Tensors = std::map<std::string, std::vector<float>>;

constexpr int kRows = 60;
constexpr int kColumns = 3;

float X(int row, int column) {
  return static_cast<float>((row * 7 + column * 5) % 23) / 4 + static_cast<float>(column);
}

// float32 [kRows, kColumns] as IDX, big-endian.
void WriteIdx(const std::string& path) {
  std::string bytes{0, 0, 0x0D, 2, 0, 0, 0, kRows, 0, 0, 0, kColumns};
  for (int i = 0; i < kRows * kColumns; ++i) {
    const float value = X(i / kColumns, i % kColumns);
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    for (int byte = 3; byte >= 0; --byte) bytes.push_back(raw[byte]);
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string ArchiveJob(const std::string& archive, const std::string& more) {
  return "model:\n  archive: " MUSTER_SOURCE "/tests/fixtures/torchscript/" + archive + "\n" +
         more +
         R"(data:
  idx: {columns: {x: x.idx}}
evaluation:
  data:
    idx: {columns: {x: x.idx}}
loss:
  function: |
    def loss(output, x):
        return (output * output).mean()
optimizer: {kind: sgd, learning_rate: 0.02}
batch_size: 10
epochs: 10
seed: 5
checkpoint: {every_steps: 25}
)";
}

// The mean square of linear and batch norm with these values, in evaluation.
double LossOf(const Tensors& t) {
  double sum = 0;
  for (int row = 0; row < kRows; ++row) {
    for (std::size_t out = 0; out < 2; ++out) {
      double y = t.at("linear.bias")[out];
      for (int in = 0; in < kColumns; ++in) {
        y += t.at("linear.weight")[out * kColumns + static_cast<std::size_t>(in)] * X(row, in);
      }
      y = (y - t.at("bn.running_mean")[out]) / std::sqrt(t.at("bn.running_var")[out] + 1e-5);
      y = y * t.at("bn.weight")[out] + t.at("bn.bias")[out];
      sum += y * y;
    }
  }
  return sum / (kRows * 2);
}

TEST_CASE("evaluation and export use the same worker's batch norm, and frozen values are exported",
          "[cluster]") {
  const TempFolder folder;
  WriteIdx(folder / "x.idx");
  const std::string normed =
      folder.Write("normed.yaml", ArchiveJob("normed-1.13.pt", "  buffers: worker_local\n"));
  const std::string plain = folder.Write("plain.yaml", ArchiveJob("plain-1.13.pt", ""));
  Cluster cluster({.ps = 2, .workers = 2});

  const std::string id = cluster.Submit(normed);
  const int code = cluster.Wait(id, seconds(120));
  const v1::Job job = cluster.Describe(id);
  CAPTURE(cluster.up_log(), Story(job));
  REQUIRE(code == 0);
  REQUIRE(cluster.Muster({"checkpoints", "verify", id}).code == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "normed"}).code == 0);
  const Tensors tensors = ReadSafetensors(folder / "normed");
  // Every batch was evaluated with the values that are exported, whichever worker it ran on.
  CHECK(job.evaluation().examples() == kRows);
  CHECK(job.evaluation().loss() == Approx(LossOf(tensors)).epsilon(1e-4));
  CHECK(tensors.at("bn.running_mean") != std::vector<float>{0, 0});
  std::int64_t tracked = 0;
  std::memcpy(&tracked, tensors.at("bn.num_batches_tracked").data(), sizeof tracked);
  CHECK(tracked > 0);
  CHECK(tracked <= 60);
  if (!FindEvent(job, "BUFFERS_OF_ANOTHER")) {
    // The steps of worker 0, which has also evaluated.
    for (const v1::TaskState& task : job.tasks()) {
      if (task.task().type() != "worker" || task.task().index() != 0) continue;
      CHECK(static_cast<std::uint64_t>(tracked) <= task.closures_done());
    }
  }

  const std::string other = cluster.Submit(plain);
  REQUIRE(cluster.Wait(other, seconds(120)) == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", other, "-o", folder / "plain"}).code == 0);
  const Tensors constant = ReadSafetensors(folder / "plain");
  CHECK(constant.at("mask") == std::vector<float>{1, 1, 0, 1});
  CHECK(constant.at("scale") == std::vector<float>{2});
  CHECK(constant.contains("hidden.weight"));
  CHECK(cluster.Drain() == 0);
}

TEST_CASE(
    "an executor that stands still is killed and its closures run elsewhere; a killed daemon's "
    "signal is named",
    "[cluster]") {
  const TempFolder folder;
  // It lasts until all of this has happened: an executor that was stopped with nothing to do is
  // found 6 s later, and the other worker alone is quick.
  const SumJob sums(folder, 2000, 10, 60, 150);
  Cluster cluster({.ps = 1, .workers = 2, .environment = {{"MUSTER_STUCK_TIMEOUT", "1500ms"}}});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 50, seconds(60)));

  int executor = 0;
  const v1::Job running = cluster.Describe(id);
  for (const v1::TaskState& task : running.tasks()) {
    if (task.executor_pid() != 0) executor = static_cast<int>(task.executor_pid());
  }
  REQUIRE(executor > 0);
  REQUIRE(::kill(executor, SIGSTOP) == 0);
  const bool stuck = Eventually(milliseconds(15'000),
                                [&] { return FindEvent(cluster.Describe(id), "EXECUTOR_STUCK"); });
  {
    const v1::Job job = cluster.Describe(id);
    CAPTURE(Story(job));
    REQUIRE(stuck);
    const v1::Event& event = *FindEvent(job, "EXECUTOR_STUCK");
    CHECK(event.fields().at("pid") == std::to_string(executor));
    CHECK(event.message().find("got nowhere for 1.5 s") != std::string::npos);
  }

  REQUIRE(cluster.Kill("worker:1", SIGKILL));
  REQUIRE(Eventually(milliseconds(5'000),
                     [&] { return FindEvent(cluster.Describe(id), "WORKER_LOST"); }));
  CHECK(FindEvent(cluster.Describe(id), "WORKER_LOST")->fields().at("how") == "signal SIGKILL");

  sums.Hurry();
  REQUIRE(cluster.Wait(id, seconds(120)) == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
  CHECK(cluster.Drain() == 0);
}

}  // namespace
}  // namespace muster::testing
