// Turns the results of closures into the progress line of a job.
#pragma once

#include <deque>

#include "common/base/scheduler.h"
#include "muster/v1/driver.pb.h"

namespace muster::trainer {

// Threading: not thread-safe. Lifetime: `clock` and `spec` outlive it.
class ProgressMeter {
 public:
  // `before`: the last report of whoever drove the job until now; its totals go on.
  ProgressMeter(const Clock& clock, const v1::JobSpec& spec, std::uint64_t total_steps,
                std::uint64_t steps_per_epoch, const v1::JobProgress& before);

  void Add(const v1::ClosureResult& result);
  // Rates over the last kWindow; loss and metrics over the results since the last call (or the call
  // before, when there are none), at the last step over those of the last epoch.
  v1::JobProgress Report(std::uint64_t step, const std::string& phase);

  static constexpr std::chrono::seconds kWindow{5};

 private:
  void ShowMeans(const v1::MetricSums& sums);
  void ShowTimes();

  struct Sample {
    TimePoint time;
    std::uint64_t step;
    std::uint64_t examples;
  };

  const Clock& clock_;
  const v1::JobSpec& spec_;
  const std::uint64_t total_steps_;
  const std::uint64_t steps_per_epoch_;
  std::deque<Sample> window_;
  // Steps above this one belong to the last epoch.
  const std::uint64_t before_last_epoch_;
  v1::MetricSums interval_;  // of steps before the last epoch
  v1::MetricSums tail_;      // of steps in it
  v1::MetricSums last_epoch_;
  std::uint64_t interval_steps_ = 0;
  double read_us_ = 0, pull_us_ = 0, compute_us_ = 0, push_us_ = 0;
  double longest_us_ = 0;
  // Means over steps in earlier intervals, pauses left out.
  double usual_us_ = 0;
  std::uint64_t usual_steps_ = 0;
  std::uint64_t examples_ = 0;
  v1::JobProgress last_;
};

}  // namespace muster::trainer
