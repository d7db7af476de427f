// The update rules in double. Their formulas stand beside those of float, in kernels.cc.
#include <algorithm>
#include <cmath>

#include "ps/kernels.h"

namespace muster::ps {
namespace {

using DoubleRule = BasicRule<double>;

// One element: changes its value p, and the slots a and b where its rule has them.
void Step(const DoubleRule& r, double& p, double* a, double* b, double g) {
  if (r.kind == RuleKind::kAdamW) {
    p *= r.decay;
  } else {
    g += r.weight_decay * p;
  }
  switch (r.kind) {
    case RuleKind::kSgd:
      p -= r.learning_rate * g;
      return;
    case RuleKind::kMomentum:
      *a = r.momentum * *a + g;
      p -= r.learning_rate * *a;
      return;
    case RuleKind::kNesterov:
      *a = r.momentum * *a + g;
      p -= r.learning_rate * (g + r.momentum * *a);
      return;
    case RuleKind::kAdagrad:
      *a += g * g;
      p -= r.learning_rate * g / (std::sqrt(*a) + r.epsilon);
      return;
    case RuleKind::kAdam:
    case RuleKind::kAdamW:
      *a = r.beta1 * *a + r.one_minus_beta1 * g;
      *b = r.beta2 * *b + r.one_minus_beta2 * (g * g);
      p -= r.step_size * *a / (std::sqrt(*b) / r.root_correction2 + r.epsilon);
      return;
    case RuleKind::kFtrl:
      return;
  }
}

}  // namespace

void ApplyDense(const DoubleRule& rule, const BasicArrays<double>& arrays,
                std::span<const double> gradient) {
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    Step(rule, arrays.values[i], arrays.slots[0] != nullptr ? arrays.slots[0] + i : nullptr,
         arrays.slots[1] != nullptr ? arrays.slots[1] + i : nullptr, gradient[i]);
  }
}

void ApplyRows(const DoubleRule& rule, const BasicArrays<double>& arrays, std::size_t row_elements,
               std::span<const std::int64_t> ids, const double* gradients) {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    ApplyDense(rule, arrays.At(static_cast<std::size_t>(ids[k]) * row_elements),
               {gradients + k * row_elements, row_elements});
  }
}

}  // namespace muster::ps
