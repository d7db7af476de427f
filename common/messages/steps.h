// A plan's StepPlan as the rule it stands for. Threading: a pure function.
#pragma once

#include "common/base/step_rule.h"

namespace muster::v1 {
class JobPlan;
}

namespace muster {

// Without a bound where the plan has none.
StepRule StepsOf(const v1::JobPlan& plan);

}  // namespace muster
