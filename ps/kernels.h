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
struct Rule {
  RuleKind kind = RuleKind::kSgd;
  float learning_rate = 0;
  float weight_decay = 0;
  float momentum = 0;
  float epsilon = 0;
  float beta1 = 0;
  float beta2 = 0;
  float one_minus_beta1 = 0;
  float one_minus_beta2 = 0;
  // Adam: learning_rate / (1 - beta1^t), and sqrt(1 - beta2^t).
  float step_size = 0;
  float root_correction2 = 1;
  // AdamW: 1 - learning_rate * weight_decay.
  float decay = 1;
  float l1 = 0;
  float l2 = 0;
  float ftrl_beta = 0;
};

inline constexpr std::size_t kMaxSlots = 2;

// A variable and its slots, all of one size. Unused slots: null.
struct Arrays {
  float* values = nullptr;
  std::array<float*, kMaxSlots> slots{};

  Arrays At(std::size_t offset) const {
    return {values + offset,
            {slots[0] ? slots[0] + offset : nullptr, slots[1] ? slots[1] + offset : nullptr}};
  }
};

void ApplyDense(const Rule& rule, const Arrays& arrays, std::span<const float> gradient);
// Row k of `gradients` belongs to row ids[k]. Touches nothing but those rows.
void ApplyRows(const Rule& rule, const Arrays& arrays, std::size_t row_elements,
               std::span<const std::int64_t> ids, const float* gradients);
// Row ids[k] of `values` becomes row k of `into`.
void GatherRows(const float* values, std::size_t row_elements, std::span<const std::int64_t> ids,
                float* into);
bool AllFinite(std::span<const float> values);

}  // namespace muster::ps
