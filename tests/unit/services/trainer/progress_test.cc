#include "services/trainer/progress.h"

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster::trainer {
namespace {

using std::chrono::milliseconds;

// 40 steps of 10 examples, 10 to an epoch.
struct MeterFixture {
  FakeScheduler clock;
  v1::JobSpec spec;
  ProgressMeter meter{clock, spec, 40, 10, {}};

  void Add(std::uint64_t step, double loss, std::uint64_t compute_us = 100) {
    v1::ClosureResult result;
    result.mutable_closure()->set_id(step);
    result.mutable_metrics()->set_examples(10);
    result.mutable_metrics()->set_loss_sum(10 * loss);
    result.set_compute_us(compute_us);
    meter.Add(result);
  }
  v1::JobProgress Report(std::uint64_t step) {
    clock.Advance(milliseconds(500));
    return meter.Report(step, "training");
  }
};

TEST_CASE_METHOD(MeterFixture,
                 "the loss on the way is the last interval's, at the end the last epoch's",
                 "[trainer][unit]") {
  for (std::uint64_t step = 1; step <= 25; ++step) Add(step, 100);
  CHECK(Report(25).loss() == 100);
  for (std::uint64_t step = 26; step <= 33; ++step) Add(step, step > 30 ? 6 : 50);
  CHECK(Report(33).loss() == Approx((5 * 50 + 3 * 6) / 8.0));
  for (std::uint64_t step = 34; step <= 39; ++step) Add(step, 2);
  CHECK(Report(39).loss() == 2);
  Add(40, 1);

  CHECK(Report(40).loss() == Approx((3 * 6 + 6 * 2 + 1) / 10.0));
  CHECK(Report(40).loss() == Approx(3.1));  // and stays, while the job evaluates
}

TEST_CASE_METHOD(MeterFixture,
                 "the last epoch's mean counts results that came before the step was told",
                 "[trainer][unit]") {
  for (std::uint64_t step = 31; step <= 40; ++step) Add(step, static_cast<double>(step));
  CHECK(Report(35).loss() == Approx(35.5));
  CHECK(Report(40).loss() == Approx(35.5));
}

TEST_CASE_METHOD(MeterFixture, "a step that stood still is told beside the means that hold it",
                 "[trainer][unit]") {
  for (std::uint64_t step = 1; step <= 5; ++step) Add(step, 1);
  CHECK(Report(5).pause_us() == 0);
  Add(6, 1, 8'000'000);

  const v1::JobProgress paused = Report(6);
  Add(7, 1);
  const v1::JobProgress after = Report(7);

  CHECK(paused.compute_us() == 8'000'000);
  CHECK(paused.pause_us() == 8'000'000);
  CHECK(after.pause_us() == 0);
}

TEST_CASE_METHOD(MeterFixture, "steps that are all slow are no pause", "[trainer][unit]") {
  for (std::uint64_t step = 1; step <= 5; ++step) Add(step, 1, 2'000'000);
  CHECK(Report(5).pause_us() == 0);
  Add(6, 1, 6'000'000);
  CHECK(Report(6).pause_us() == 0);
}

}  // namespace
}  // namespace muster::trainer
