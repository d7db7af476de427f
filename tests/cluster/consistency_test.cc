// Model jobs whose batches may not run ahead of each other as they like.
#include <csignal>
#include <optional>
#include <random>

#include <fmt/core.h>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

// A net of numbers of every size: two orders of its sums have other bits. 30 batches an epoch, in
// steps of 4.
struct OrderJob {
  OrderJob(const TempFolder& folder, const std::string& consistency, int epochs = 2) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> value(-1, 1);
    std::string csv = "a,b,c,y\n";
    for (int row = 0; row < 236; ++row) {
      csv += fmt::format("{},{},{},{}\n", value(random), 100 * value(random), value(random) / 100,
                         value(random));
    }
    (void)folder.Write("order.csv", csv);
    file = folder.Write("order.yaml", fmt::format(R"(name: order
model:
  parameters:
    w: {{shape: [3, 16]}}
    v: {{shape: [16, 1]}}
  forward: |
    def forward(self, a, b, c):
        x = torch.stack([a, b, c], 1)
        slow = torch.ones([64, 64])
        for i in range(2000):
            slow = torch.mm(slow, slow) / 64.0
        return torch.mm(torch.tanh(torch.mm(x, self.w)), self.v) + (slow.sum() - slow.sum())
data:
  csv:
    files: order.csv
    columns: {{a: {{}}, b: {{}}, c: {{}}, y: {{}}}}
loss:
  function: |
    def loss(output, y):
        return (output - y.unsqueeze(1)).pow(2).mean()
optimizer: {{kind: adam, learning_rate: 0.01}}
batch_size: 8
epochs: {}
seed: 3
strategy:
  partitioner: {{kind: fixed, num_shards: 2}}
{})",
                                                  epochs, consistency));
  }
  std::string file;
};

std::map<std::string, std::vector<float>> Export(const Cluster& cluster, const TempFolder& folder,
                                                 const std::string& id) {
  const RunResult exported =
      cluster.Muster({"checkpoints", "export", id, "-o", folder / "out.safetensors"});
  INFO(exported.err);
  REQUIRE(exported.code == 0);
  return ReadSafetensors(folder / "out.safetensors");
}

// What the job makes of its variables on so many workers; `trouble` while it runs.
std::map<std::string, std::vector<float>> Train(
    int workers, const std::function<void(Cluster&, const std::string&)>& trouble = nullptr,
    int epochs = 2) {
  const TempFolder folder;
  const OrderJob job(folder, "  consistency: synchronous\n  gradients_per_step: 4\n", epochs);
  Cluster cluster({.ps = 2, .workers = workers});
  const std::string id = cluster.Submit(job.file);
  if (trouble) trouble(cluster, id);
  const int code = cluster.Wait(id, seconds(120));
  CAPTURE(cluster.up_log(), Story(cluster.Describe(id)));
  REQUIRE(code == 0);
  return Export(cluster, folder, id);
}

TEST_CASE("a synchronous job ends with the same bits on 1, 2 and 4 workers", "[cluster]") {
  const auto alone = Train(1);
  REQUIRE(alone.size() == 2);
  CHECK(Train(2) == alone);
  CHECK(Train(4) == alone);
}

TEST_CASE(
    "a synchronous job whose workers are killed ends with the bits of one that was left alone",
    "[cluster]") {
  const auto alone = Train(2);
  const auto hurt = Train(3, [](Cluster& cluster, const std::string& id) {
    for (const std::uint64_t step : {5, 20, 35}) {
      REQUIRE(cluster.WaitForStep(id, step, seconds(60)));
      REQUIRE(cluster.Kill(fmt::format("worker:{}", step / 15), SIGKILL));
    }
  });
  CHECK(hurt == alone);
}

TEST_CASE("a synchronous job does not wait for a batch that a worker holds up, and keeps its bits",
          "[cluster]") {
  const TempFolder folder;
  constexpr int kEpochs = 12;
  const OrderJob job(
      folder, "  consistency: synchronous\n  gradients_per_step: 4\n  speculative: 1\n", kEpochs);
  Cluster cluster({.ps = 2, .workers = 3});
  const std::string id = cluster.Submit(job.file);
  REQUIRE(cluster.WaitForStep(id, 12, seconds(60)));
  const int held = ExecutorPid(cluster.Describe(id), 0);
  REQUIRE(held > 0);
  REQUIRE(::kill(held, SIGSTOP) == 0);
  const std::uint64_t then = cluster.Describe(id).progress().step();
  const bool went_on = cluster.WaitForStep(id, then + 80, seconds(60));
  const v1::Job meanwhile = cluster.Describe(id);
  REQUIRE(::kill(held, SIGCONT) == 0);
  CAPTURE(cluster.up_log(), Story(meanwhile));
  CHECK(went_on);
  // Without a second execution it would have gone on when the worker was given up.
  CHECK(CountEvents(meanwhile, "CLOSURES_RERUN") == 0);
  REQUIRE(cluster.Wait(id, seconds(120)) == 0);
  CHECK(Export(cluster, folder, id) == Train(1, nullptr, kEpochs));
}

TEST_CASE(
    "a synchronous job whose coordinator is killed ends with the bits of one that was left alone",
    "[cluster]") {
  const auto alone = Train(2);
  const auto hurt = Train(2, [](Cluster& cluster, const std::string& id) {
    for (const std::uint64_t step : {6, 25}) {
      REQUIRE(cluster.WaitForStep(id, step, seconds(60)));
      REQUIRE(cluster.Kill("coordinator", SIGKILL));
      REQUIRE(Eventually(seconds(30), [&] { return cluster.Muster({"describe", id}).code == 0; }));
    }
  });
  CHECK(hurt == alone);
}

TEST_CASE("a job that is stopped does not compute the batches first that nobody has begun",
          "[cluster]") {
  const TempFolder folder;
  const OrderJob job(folder, "", /*epochs=*/60);
  Cluster cluster({.ps = 2, .workers = 2});
  const std::string id = cluster.Submit(job.file);
  REQUIRE(cluster.WaitForStep(id, 5, seconds(60)));
  REQUIRE(cluster.Muster({"stop", id}).code == 0);
  REQUIRE(cluster.Wait(id, seconds(60)) == 8);
  const v1::Job ended = cluster.Describe(id);
  INFO(Story(ended));
  // Hundreds were scheduled.
  CHECK(ended.progress().step() < 400);
}

TEST_CASE("a synchronous job that is stopped in the middle of a step is saved at the end of one",
          "[cluster]") {
  const TempFolder folder;
  const OrderJob job(folder,
                     "  consistency: synchronous\n  gradients_per_step: 4\n"
                     "checkpoint: {every_steps: 6}\n");
  Cluster cluster({.ps = 2, .workers = 2});
  const std::string id = cluster.Submit(job.file);
  REQUIRE(cluster.WaitForStep(id, 9, seconds(60)));
  REQUIRE(cluster.Muster({"stop", id}).code == 0);
  REQUIRE(cluster.Wait(id, seconds(60)) == 8);
  const v1::Job ended = cluster.Describe(id);
  INFO(Story(ended));
  CHECK(ended.progress().step() % 4 == 0);

  // It goes on to the end that it would have had.
  REQUIRE(cluster.Submit(job.file) == id);
  REQUIRE(cluster.Wait(id, seconds(120)) == 0);
  CHECK(Export(cluster, folder, id) == Train(1));
}

// How many batches workers have done, as they count them themselves; of that worker alone.
std::int64_t BatchesDone(const v1::ClusterStatus& status,
                         std::optional<std::uint32_t> of = std::nullopt) {
  std::int64_t done = 0;
  for (const v1::TaskState& task : status.tasks()) {
    const bool counts = !of || (task.task().type() == "worker" && task.task().index() == *of);
    if (counts) done += static_cast<std::int64_t>(task.closures_done());
  }
  return done;
}

TEST_CASE(
    "a job of bounded staleness runs no further ahead of a batch that a worker holds up, and "
    "applies every batch, whichever workers are killed",
    "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 600, 10, 60, 150, "  consistency: {staleness: 2}\n");
  Cluster cluster({.ps = 2, .workers = 3});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 20, seconds(60)));
  // On a busy machine the others may be so far before this one has begun, and then it holds
  // nothing.
  REQUIRE(Eventually(seconds(60), [&] { return BatchesDone(cluster.Status(), 0U) > 0; }));
  const int held = ExecutorPid(cluster.Describe(id), 0);
  REQUIRE(held > 0);
  REQUIRE(::kill(held, SIGSTOP) == 0);
  // Until it is given up, seconds later, `step` counts the batches before those that it has; what
  // the others do meanwhile is beyond them. Without a bound that is hundreds.
  std::int64_t ahead = 0;
  int looks = 0;
  v1::Job meanwhile;
  const bool given_up = Eventually(seconds(60), [&] {
    const std::int64_t done = BatchesDone(cluster.Status());
    meanwhile = cluster.Describe(id);
    if (CountEvents(meanwhile, "CLOSURES_RERUN") > 0 || meanwhile.ended_ms() != 0) return true;
    ahead = done - static_cast<std::int64_t>(meanwhile.progress().step());
    ++looks;
    return false;
  });
  // Its daemon may have ended it by now.
  const bool alive = ::kill(held, SIGCONT) == 0;
  CAPTURE(cluster.up_log(), Story(meanwhile), looks, alive);
  CHECK(given_up);
  CHECK(meanwhile.ended_ms() == 0);
  CHECK(looks > 1);
  CHECK(ahead <= 2);
  REQUIRE(cluster.Kill("worker:1", SIGKILL));
  sums.Hurry();
  REQUIRE(cluster.Wait(id, seconds(120)) == 0);
  CHECK(Export(cluster, folder, id).at("w") == sums.expected);
}

}  // namespace
}  // namespace muster::testing
