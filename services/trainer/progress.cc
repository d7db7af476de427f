#include "services/trainer/progress.h"

#include <algorithm>

#include "common/messages/evaluation_result.h"
#include "common/messages/metric_sums.h"

namespace muster::trainer {
namespace {

// A step that takes longer than both stood still; it did not compute.
constexpr double kPauseUs = 1e6;
constexpr double kPauseTimes = 10;

}  // namespace

ProgressMeter::ProgressMeter(const Clock& clock, const v1::JobSpec& spec, std::uint64_t total_steps,
                             std::uint64_t steps_per_epoch, const v1::JobProgress& before)
    : clock_(clock),
      spec_(spec),
      total_steps_(total_steps),
      steps_per_epoch_(steps_per_epoch),
      before_last_epoch_(total_steps - std::min(total_steps, steps_per_epoch)),
      last_(before) {}

void ProgressMeter::Add(const v1::ClosureResult& result) {
  AddSums(result.metrics(), result.closure().id() > before_last_epoch_ ? tail_ : interval_);
  ++interval_steps_;
  examples_ += result.metrics().examples();
  read_us_ += static_cast<double>(result.read_us());
  pull_us_ += static_cast<double>(result.pull_us());
  compute_us_ += static_cast<double>(result.compute_us());
  push_us_ += static_cast<double>(result.push_us());
  longest_us_ = std::max(longest_us_, static_cast<double>(result.read_us() + result.pull_us() +
                                                          result.compute_us() + result.push_us()));
  last_.set_tcp_bytes(last_.tcp_bytes() + result.tcp_bytes());
  last_.set_local_bytes(last_.local_bytes() + result.local_bytes());
  last_.set_bad_records(std::max(last_.bad_records(), result.bad_records()));
}

void ProgressMeter::ShowMeans(const v1::MetricSums& sums) {
  const v1::EvaluationResult means = Summarise(sums, spec_, last_.step());
  last_.set_loss(means.loss());
  if (means.has_accuracy()) last_.set_accuracy(means.accuracy());
}

void ProgressMeter::ShowTimes() {
  const auto steps = static_cast<double>(interval_steps_);
  last_.set_read_us(read_us_ / steps);
  last_.set_pull_us(pull_us_ / steps);
  last_.set_compute_us(compute_us_ / steps);
  last_.set_push_us(push_us_ / steps);
  const double others = usual_us_ + read_us_ + pull_us_ + compute_us_ + push_us_ - longest_us_;
  const std::uint64_t other_steps = usual_steps_ + interval_steps_ - 1;
  const bool paused = other_steps > 0 && longest_us_ > kPauseUs &&
                      longest_us_ > kPauseTimes * others / static_cast<double>(other_steps);
  last_.set_pause_us(paused ? static_cast<std::uint64_t>(longest_us_) : 0);
  usual_us_ = others + (paused ? 0 : longest_us_);
  usual_steps_ = other_steps + (paused ? 0 : 1);
}

// Rates over the window of the last reports; times and metrics over the steps since the last one,
// which begin anew.
v1::JobProgress ProgressMeter::Report(std::uint64_t step, const std::string& phase) {
  const TimePoint now = clock_.Now();
  window_.push_back({now, step, examples_});
  while (window_.size() > 2 && now - window_.front().time > kWindow) window_.pop_front();

  last_.set_step(step);
  last_.set_total_steps(total_steps_);
  if (steps_per_epoch_ > 0) {
    last_.set_epoch(static_cast<double>(step) / static_cast<double>(steps_per_epoch_));
  }
  last_.set_phase(phase);
  const std::chrono::duration<double> span = now - window_.front().time;
  if (span.count() > 0) {
    const auto examples = static_cast<double>(examples_ - window_.front().examples);
    const auto steps = static_cast<double>(step - window_.front().step);
    last_.set_examples_per_second(examples / span.count());
    if (steps > 0) {
      last_.set_eta_seconds(static_cast<double>(total_steps_ - step) * span.count() / steps);
    }
  }
  if (interval_steps_ > 0) {
    ShowTimes();
    AddSums(tail_, last_epoch_);
    AddSums(tail_, interval_);
    ShowMeans(interval_);
    interval_.Clear();
    tail_.Clear();
    interval_steps_ = 0;
    read_us_ = pull_us_ = compute_us_ = push_us_ = longest_us_ = 0;
  }
  if (step == total_steps_ && last_epoch_.examples() > 0) ShowMeans(last_epoch_);
  return last_;
}

}  // namespace muster::trainer
