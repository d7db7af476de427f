// An optimizer of a job: its slots, where they begin, and the numbers of each step.
//
// Threading: immutable; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/status.h"
#include "ps/kernels.h"
#include "ps/schedule.h"

namespace muster::v1 {
class OptimizerSpec;
}

namespace muster::ps {

class Optimizer {
 public:
  // kInvalidArgument names the field, its value and what is allowed.
  static Result<Optimizer> Create(const v1::OptimizerSpec& spec, std::uint64_t total_steps);

  // As checkpoints call them: "momentum"; "sum"; "exp_avg", "exp_avg_sq"; "n", "z".
  std::span<const std::string_view> slots() const { return slots_; }
  // What the slot holds before the first update of variables with these values.
  void FillSlot(std::size_t slot, std::span<const float> values, std::span<float> into) const;
  // What FillSlot() fills in where that does not depend on the values, which only FTRL's z does.
  double initial_slot() const;
  // FillSlot() gives zeros.
  bool SlotIsZero(std::size_t slot) const;
  // Step t is the closure's number, from 1.
  Rule RuleOf(std::uint64_t t) const { return RuleOf(t, t); }
  // The same for update `update`, from 1, of the gradients up to closure t: the schedule counts
  // closures.
  Rule RuleOf(std::uint64_t t, std::uint64_t update) const;
  // The same for update t, from 1, at a learning rate that came with it.
  template <class T>
  BasicRule<T> RuleAt(std::uint64_t t, double learning_rate) const;

 private:
  explicit Optimizer(const Schedule& schedule) : schedule_(schedule) {}
  Status Validate() const;

  Schedule schedule_;
  RuleKind kind_ = RuleKind::kSgd;
  std::span<const std::string_view> slots_;
  double learning_rate_ = 0;
  double weight_decay_ = 0;
  double momentum_ = 0;
  double beta1_ = 0;
  double beta2_ = 0;
  double epsilon_ = 0;
  double initial_accumulator_ = 0;
  double l1_ = 0;
  double l2_ = 0;
  double ftrl_beta_ = 0;
};

}  // namespace muster::ps
