#include "ps/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "muster/v1/job_spec.pb.h"

namespace muster::ps {

Result<Schedule> Schedule::Create(const v1::ScheduleSpec& spec, std::uint64_t total_steps) {
  Schedule schedule;
  schedule.warmup_steps_ = spec.warmup_steps();
  switch (spec.kind()) {
    case v1::SCHEDULE_KIND_UNSPECIFIED:
    case v1::SCHEDULE_KIND_CONSTANT:
      return schedule;
    case v1::SCHEDULE_KIND_STEP:
      schedule.kind_ = Kind::kStep;
      schedule.step_size_ = spec.step_size();
      schedule.gamma_ = spec.has_gamma() ? spec.gamma() : 0.1;
      if (spec.step_size() == 0) {
        return InvalidArgument("optimizer.schedule.step_size is 0; it must be at least 1");
      }
      if (!(schedule.gamma_ > 0) || !std::isfinite(schedule.gamma_)) {
        return InvalidArgument("optimizer.schedule.gamma is {}; it must be above 0",
                               schedule.gamma_);
      }
      return schedule;
    case v1::SCHEDULE_KIND_COSINE:
      schedule.kind_ = Kind::kCosine;
      schedule.total_steps_ = spec.total_steps() != 0 ? spec.total_steps() : total_steps;
      schedule.final_factor_ = spec.final_factor();
      if (schedule.total_steps_ <= spec.warmup_steps()) {
        return InvalidArgument(
            "optimizer.schedule.total_steps is {}; it must be above warmup_steps, {}",
            schedule.total_steps_, spec.warmup_steps());
      }
      if (!(schedule.final_factor_ >= 0) || !std::isfinite(schedule.final_factor_)) {
        return InvalidArgument("optimizer.schedule.final_factor is {}; it must be 0 or more",
                               schedule.final_factor_);
      }
      return schedule;
    default:
      return InvalidArgument("optimizer.schedule.kind {} is not known to this version",
                             static_cast<int>(spec.kind()));
  }
}

double Schedule::Factor(std::uint64_t step) const {
  if (step < warmup_steps_) return static_cast<double>(step) / static_cast<double>(warmup_steps_);
  switch (kind_) {
    case Kind::kStep: {
      const std::uint64_t steps = (std::max<std::uint64_t>(step, 1) - 1) / step_size_;
      return std::pow(gamma_, static_cast<double>(steps));
    }
    case Kind::kCosine: {
      const std::uint64_t start = std::max<std::uint64_t>(warmup_steps_, 1);
      if (step >= total_steps_) return final_factor_;
      if (step <= start) return 1;
      const double progress =
          static_cast<double>(step - start) / static_cast<double>(total_steps_ - start);
      return final_factor_ + (1 - final_factor_) * (1 + std::cos(std::numbers::pi * progress)) / 2;
    }
    default:
      return 1;
  }
}

}  // namespace muster::ps
