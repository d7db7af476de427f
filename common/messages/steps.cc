#include "common/messages/steps.h"

#include <algorithm>

#include "muster/v1/common.pb.h"

namespace muster {

StepRule StepsOf(const v1::JobPlan& plan) {
  if (!plan.has_steps()) return {};
  return {.gradients = std::max<std::uint64_t>(1, plan.steps().gradients()),
          .staleness = plan.steps().staleness(),
          .last = plan.total_steps()};
}

}  // namespace muster
