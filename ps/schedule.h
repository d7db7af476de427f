// The learning rate of a step. Formulas: ScheduleSpec in proto/muster/v1/job_spec.proto.
// Threading: a value; const methods from any thread.
#pragma once

#include <cstdint>

#include "common/base/status.h"

namespace muster::v1 {
class ScheduleSpec;
}

namespace muster::ps {

class Schedule {
 public:
  // `total_steps` is the job's own number, for a cosine that names none.
  //   kInvalidArgument names the field.
  static Result<Schedule> Create(const v1::ScheduleSpec& spec, std::uint64_t total_steps);

  // What step s, from 1, multiplies the learning rate by. Steps 1 to warmup_steps: s /
  // warmup_steps. Cosine then falls from 1, at the end of the warm-up (or at step 1), to
  // final_factor at total_steps, and stays there.
  double Factor(std::uint64_t step) const;
  bool constant() const { return kind_ == Kind::kConstant && warmup_steps_ == 0; }

 private:
  enum class Kind { kConstant, kStep, kCosine };

  Kind kind_ = Kind::kConstant;
  std::uint64_t warmup_steps_ = 0;
  std::uint64_t step_size_ = 1;
  double gamma_ = 0.1;
  std::uint64_t total_steps_ = 1;
  double final_factor_ = 0;
};

}  // namespace muster::ps
