// A model job of which nobody says when to save, driven by the trainer's own loop in the
// coordinator's virtual time: what it has saved by itself is what a loss sends it back to.
#include <functional>
#include <vector>

#include "services/trainer/trainer.h"
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::Given;

// What the trainer asks of its coordinator and of its closures, both in this process. A worker ends
// one closure at each look.
class DrivenByTrainer : public trainer::DriverApi, public trainer::Closures {
 public:
  explicit DrivenByTrainer(Cluster& cluster) : cluster_(cluster) {}

  // One driver's life: until the job has ended, or its view.
  Status Run() {
    return trainer::Trainer(*this,
                            [this](const v1::OpenJobReply&) -> trainer::Closures& { return *this; },
                            cluster_.time, {.window = 16, .join_slice = Millis(500)})
        .Run();
  }

  Result<v1::OpenJobReply> OpenJob() override {
    MUSTER_TRY_ASSIGN(opened, cluster_.Open());
    told_ = opened.steps_done();
    return opened;
  }
  Result<v1::BeginEvaluationReply> BeginEvaluation(ViewId, const v1::ModelReport&) override {
    return Internal("nothing is evaluated");
  }
  Result<v1::SaveCheckpointReply> SaveCheckpoint(ViewId, std::uint64_t step,
                                                 const v1::ModelReport&) override {
    MUSTER_TRY(cluster_.Save(step));
    saved.push_back(step);
    saved_at.push_back(cluster_.time.Now());
    return v1::SaveCheckpointReply();
  }
  Result<v1::ReportProgressReply> Report(ViewId view, const v1::JobProgress& progress,
                                         const v1::EvaluationResult*) override {
    auto request = cluster_.As<v1::ReportProgressRequest>();
    request.set_view(view.value());
    *request.mutable_progress() = progress;
    return cluster_.job().ReportProgress(request);
  }
  Status Finish(ViewId, const Status& status, const v1::EvaluationResult*,
                const v1::ModelReport&) override {
    return cluster_.FinishJob(status);
  }

  Status Schedule(v1::ClosureKind kind, std::uint64_t first, std::uint64_t last,
                  std::uint64_t) override {
    return cluster_.Schedule(first, last, kind);
  }
  Result<std::vector<v1::ClosureResult>> Take(Millis limit) override {
    cluster_.Pass(limit, limit);
    if (at_look) at_look();
    if (cluster_.View() != opened.plan().view()) return Aborted("the view has gone");
    testing::FakeDaemon& worker = cluster_.at({"worker", 0});
    if (!worker.given.empty()) {
      const Given closure = worker.given.front();
      worker.given.pop_front();
      worker.Finish(closure);
    }
    MUSTER_TRY(cluster_.model().Join().status());
    std::vector<v1::ClosureResult> results;
    while (told_ < cluster_.model().done()) {
      v1::ClosureResult& result = results.emplace_back();
      result.mutable_closure()->set_kind(v1::CLOSURE_KIND_TRAIN);
      result.mutable_closure()->set_id(++told_);
      result.mutable_metrics()->set_examples(10);
      result.mutable_metrics()->set_loss_sum(10);
    }
    return results;
  }
  void StopGiving() override {}
  bool stands_still() override { return true; }
  std::size_t workers() override { return 1; }
  bool stop_requested() const override { return false; }
  v1::ModelReport Position() override { return cluster_.model().Report(false); }
  v1::ModelReport Report() override { return cluster_.model().Report(true); }

  v1::OpenJobReply opened;  // the newest
  std::vector<std::uint64_t> saved;
  std::vector<TimePoint> saved_at;
  std::function<void()> at_look;

 private:
  Cluster& cluster_;
  std::uint64_t told_ = 0;
};

TEST_CASE("A job of which nobody says when to save goes back to what it has saved after a minute",
          "[coordinator][unit]") {
  constexpr std::uint64_t kSteps = 400;  // two a second
  Cluster cluster;
  cluster.JoinAll(2, 1);
  v1::JobSpec spec = Cluster::Spec();
  REQUIRE_FALSE(spec.has_checkpoint());
  spec.set_steps(kSteps);
  REQUIRE(cluster.Submit(spec).ok());
  const TimePoint began = cluster.time.Now();
  const std::uint64_t view = cluster.View();
  DrivenByTrainer driven(cluster);
  // Ten seconds after the first save a server loses its memory.
  driven.at_look = [&] {
    if (driven.saved.empty() || cluster.View() != view) return;
    if (cluster.time.Now() - driven.saved_at[0] < std::chrono::seconds(10)) return;
    cluster.Kill({"ps", 1});
    cluster.Pass(Millis(1'000));
    (void)cluster.Join({"ps", 1}, "boot-2");
  };

  REQUIRE(driven.Run().ok());

  REQUIRE(driven.saved.size() == 1);
  const std::uint64_t step = driven.saved[0];
  CHECK(step > 0);
  CHECK(step < kSteps);
  CHECK(driven.saved_at[0] - began >= std::chrono::seconds(60));
  CHECK(driven.saved_at[0] - began <= std::chrono::seconds(70));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.View() == view + 1);
  REQUIRE(cluster.EventOf("JOB_RESTORED"));
  CHECK(cluster.EventOf("JOB_RESTORED")->fields().at("step") == std::to_string(step));

  REQUIRE(driven.Run().ok());

  CHECK(driven.opened.plan().start_step() == step);
  CHECK(driven.opened.steps_done() == step);
  CHECK(driven.saved.size() > 2);
  CHECK(driven.saved.back() == kSteps);
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  for (const int ps : {0, 1}) {
    const testing::Memory* const memory = cluster.MemoryOf({"ps", ps});
    REQUIRE(memory != nullptr);
    CHECK(memory->StandsAt(kSteps));
  }
}

}  // namespace
}  // namespace muster::coordinator
