// Model jobs whose steps several workers make together, each worker in a network of its own: one is
// cut off from everybody, or two from each other, and meet again. Skipped, with the reason, where
// this machine has no such networks.
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/cluster/cut_cluster.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

// The lease, and the heartbeat before it.
constexpr std::int64_t kLostMs = 4'000;
// From the loss of a worker on (docs/formats/job-spec.md).
constexpr std::int64_t kGoOnMs = 5'000;

// A job of the example, the one that was submitted last, on a cluster of three workers.
struct Job {
  void Submit(const std::string& name, const std::string& strategy, std::uint64_t steps) {
    const std::string file = folder.Write(
        name + ".yaml", FashionJobUnder(strategy, steps, "checkpoint: {every_steps: 5000}\n"));
    ReplaceInFile(file, "warmup_steps: 200", "warmup_steps: 20");
    id = IdIn(cluster.Muster({"submit", "-f", file, "--name", name}));
  }

  std::uint64_t Step() const { return cluster.Describe(id).progress().step(); }
  // The group that stands; nothing: none has formed.
  const v1::Event* Group(const v1::Job& job) const {
    const v1::Event* last = nullptr;
    for (const v1::Event& event : job.events()) {
      if (event.reason() == "GROUP_FORMED") last = &event;
    }
    return last;
  }
  // Waits until so many make steps together, in a later group than `since` (of NowMs()): when it
  // has formed; -1: it has not, within `limit`.
  std::int64_t MakesStepsOf(int workers, std::int64_t since, seconds limit) const {
    std::int64_t formed = -1;
    std::uint64_t step = 0;
    (void)Eventually(limit, [&] {
      const v1::Job job = cluster.Describe(id);
      const v1::Event* const last = Group(job);
      const bool there = last != nullptr && last->time_ms() > since &&
                         last->fields().at("workers") == std::to_string(workers);
      if (!there) {
        step = 0;
        return false;
      }
      if (step == 0) step = job.progress().step() + 1;
      if (job.progress().step() < step && job.state() == v1::JOB_STATE_RUNNING) return false;
      formed = last->time_ms();
      return true;
    });
    return formed;
  }
  std::map<std::string, std::vector<float>> Result() const {
    const int code = cluster.Wait(id);
    CAPTURE(Story(cluster.Describe(id)));
    REQUIRE(code == 0);
    REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / id}).code == 0);
    return ReadSafetensors(folder / id);
  }

  TempFolder folder;
  CutCluster cluster{/*ps=*/0, /*workers=*/3};
  std::string id;
};

std::string InStep(int least) {
  return fmt::format(
      "kind: multi_worker_mirrored\n  workers: {}\n  max_workers: 3\n  deterministic: true", least);
}

TEST_CASE(
    "a worker of a model job in step that is cut off costs no step: the others go on in time, it "
    "joins them again, and no bit changes",
    "[cluster][cut]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  // On slow cables steps take their time, whatever the machine: the job is not over too soon.
  constexpr std::uint64_t kSteps = 120;
  Job job;
  for (int host = 0; host < 3; ++host) {
    if (const std::string why = job.cluster.networks().Limit(host, 300); !why.empty()) {
      WARN("skipped: " << why);
      return;
    }
  }
  job.Submit("alone", "kind: one_device\n  deterministic: true", kSteps);
  const auto expected = job.Result();
  REQUIRE(expected.size() == 4);
  job.Submit("together", InStep(1), kSteps);
  REQUIRE(job.MakesStepsOf(3, 0, seconds(60)) > 0);
  const v1::Job before = job.cluster.Describe(job.id);
  const int leader = job.Group(before)->fields().at("leader").back() - '0';
  const std::int64_t cut = NowMs();

  job.cluster.networks().Cut(leader);

  const std::int64_t formed = job.MakesStepsOf(2, cut, seconds(30));
  {
    CAPTURE(Story(job.cluster.Describe(job.id)), formed - cut);
    CHECK(formed > 0);
    CHECK(formed - cut < kLostMs + kGoOnMs);
  }
  const std::int64_t mended = NowMs();
  job.cluster.networks().Mend(leader);
  CHECK(job.MakesStepsOf(3, mended, seconds(60)) > 0);
  CHECK((job.Result() == expected));
  const v1::Job ended = job.cluster.Describe(job.id);
  CHECK(ended.view() == 1);
  CHECK(FindEvent(ended, "JOB_RESTORED") == nullptr);
}

TEST_CASE(
    "a model job in step goes on without one of two workers that are cut off from each other "
    "alone, and with both when they meet again",
    "[cluster][cut]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  // Whom the last one of the group finds both: who is to be left out has to be looked for.
  const std::vector<int> apart{0, 1};
  Job job;
  job.Submit("apart", InStep(2), 1'000'000);
  REQUIRE(job.MakesStepsOf(3, 0, seconds(60)) > 0);
  const std::int64_t cut = NowMs();

  job.cluster.networks().KeepApart(apart);

  const std::int64_t formed = job.MakesStepsOf(2, cut, seconds(60));
  CAPTURE(Story(job.cluster.Describe(job.id)), formed - cut);
  CHECK(formed > 0);
  const std::int64_t mended = NowMs();
  for (const int host : apart) job.cluster.networks().Mend(host);
  CHECK(job.MakesStepsOf(3, mended, seconds(60)) > 0);
  const v1::Job story = job.cluster.Describe(job.id);
  CHECK(story.view() == 1);
  CHECK(CountEvents(story, "WORKER_LOST") == 0);
}

}  // namespace
}  // namespace muster::testing
