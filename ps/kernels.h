// The update rules as vectorised loops, for the best instruction set that this processor has.
//
// Every target gives the same bits: only operations that IEEE 754 rounds correctly are used, and
// multiplications and additions are never fused. The calling thread should hold FlushSubnormals.
// Threading: free functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace muster::ps {

enum class RuleKind { kSgd, kMomentum, kNesterov, kAdagrad, kAdam, kAdamW, kFtrl };

// One step's numbers. Which are used: see the formulas in kernels.cc.
template <class T>
struct BasicRule {
  RuleKind kind = RuleKind::kSgd;
  T learning_rate = 0;
  T weight_decay = 0;
  T momentum = 0;
  T epsilon = 0;
  T beta1 = 0;
  T beta2 = 0;
  T one_minus_beta1 = 0;
  T one_minus_beta2 = 0;
  // Adam: learning_rate / (1 - beta1^t), and sqrt(1 - beta2^t).
  T step_size = 0;
  T root_correction2 = 1;
  // AdamW: 1 - learning_rate * weight_decay.
  T decay = 1;
  T l1 = 0;
  T l2 = 0;
  T ftrl_beta = 0;
};
using Rule = BasicRule<float>;

inline constexpr std::size_t kMaxSlots = 2;

// A variable and its slots, all of one size. Unused slots: null.
template <class T>
struct BasicArrays {
  T* values = nullptr;
  std::array<T*, kMaxSlots> slots{};

  BasicArrays At(std::size_t offset) const {
    return {values + offset,
            {slots[0] ? slots[0] + offset : nullptr, slots[1] ? slots[1] + offset : nullptr}};
  }
};
using Arrays = BasicArrays<float>;

void ApplyDense(const Rule& rule, const Arrays& arrays, std::span<const float> gradient);
// Row k of `gradients` belongs to row ids[k]. Touches nothing but those rows.
void ApplyRows(const Rule& rule, const Arrays& arrays, std::size_t row_elements,
               std::span<const std::int64_t> ids, const float* gradients);
// Row ids[k] of `values` becomes row k of `into`.
void GatherRows(const float* values, std::size_t row_elements, std::span<const std::int64_t> ids,
                float* into);
bool AllFinite(std::span<const float> values);

// The same rules in double, one element at a time. Not FTRL.
void ApplyDense(const BasicRule<double>& rule, const BasicArrays<double>& arrays,
                std::span<const double> gradient);
void ApplyRows(const BasicRule<double>& rule, const BasicArrays<double>& arrays,
               std::size_t row_elements, std::span<const std::int64_t> ids,
               const double* gradients);

}  // namespace muster::ps
