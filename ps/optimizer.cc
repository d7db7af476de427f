#include "ps/optimizer.h"

#include <algorithm>
#include <cmath>

#include "muster/v1/job_spec.pb.h"

namespace muster::ps {
namespace {

constexpr std::string_view kMomentumSlots[] = {"momentum"};
constexpr std::string_view kAdagradSlots[] = {"sum"};
constexpr std::string_view kAdamSlots[] = {"exp_avg", "exp_avg_sq"};
constexpr std::string_view kFtrlSlots[] = {"n", "z"};

Status RequireAtLeastZero(std::string_view field, double value) {
  if (value >= 0 && std::isfinite(value)) return Ok();
  return InvalidArgument("optimizer.{} is {}; it must be 0 or more", field, value);
}

Status RequireFraction(std::string_view field, double value) {
  if (value >= 0 && value < 1) return Ok();
  return InvalidArgument("optimizer.{} is {}; it must be from 0 to below 1", field, value);
}

}  // namespace

Result<Optimizer> Optimizer::Create(const v1::OptimizerSpec& spec, std::uint64_t total_steps) {
  MUSTER_TRY_ASSIGN(const Schedule schedule, Schedule::Create(spec.schedule(), total_steps));
  Optimizer made(schedule);
  made.learning_rate_ = spec.learning_rate();
  made.weight_decay_ = spec.weight_decay();
  made.momentum_ = spec.has_momentum() ? spec.momentum() : 0.9;
  made.beta1_ = spec.has_beta1() ? spec.beta1() : 0.9;
  made.beta2_ = spec.has_beta2() ? spec.beta2() : 0.999;
  made.epsilon_ = spec.has_epsilon() ? spec.epsilon() : 1e-8;
  made.initial_accumulator_ = spec.initial_accumulator();
  made.l1_ = spec.l1();
  made.l2_ = spec.l2();
  made.ftrl_beta_ = spec.has_ftrl_beta() ? spec.ftrl_beta() : 1;
  switch (spec.kind()) {
    case v1::OPTIMIZER_KIND_SGD:
      made.kind_ = RuleKind::kSgd;
      break;
    case v1::OPTIMIZER_KIND_MOMENTUM:
      made.kind_ = spec.nesterov() ? RuleKind::kNesterov : RuleKind::kMomentum;
      made.slots_ = kMomentumSlots;
      break;
    case v1::OPTIMIZER_KIND_ADAGRAD:
      made.kind_ = RuleKind::kAdagrad;
      made.slots_ = kAdagradSlots;
      if (!spec.has_epsilon()) made.epsilon_ = 1e-10;
      break;
    case v1::OPTIMIZER_KIND_ADAM:
      made.kind_ = RuleKind::kAdam;
      made.slots_ = kAdamSlots;
      break;
    case v1::OPTIMIZER_KIND_ADAMW:
      made.kind_ = RuleKind::kAdamW;
      made.slots_ = kAdamSlots;
      if (!spec.has_weight_decay()) made.weight_decay_ = 0.01;
      break;
    case v1::OPTIMIZER_KIND_FTRL:
      made.kind_ = RuleKind::kFtrl;
      made.slots_ = kFtrlSlots;
      if (!spec.has_initial_accumulator()) made.initial_accumulator_ = 0.1;
      break;
    default:
      return InvalidArgument("optimizer.kind is {}; a known kind is required",
                             static_cast<int>(spec.kind()));
  }
  MUSTER_TRY(made.Validate());
  return made;
}

Status Optimizer::Validate() const {
  if (!(learning_rate_ > 0) || !std::isfinite(learning_rate_)) {
    return InvalidArgument("optimizer.learning_rate is {}; it must be above 0", learning_rate_);
  }
  MUSTER_TRY(RequireAtLeastZero("weight_decay", weight_decay_));
  MUSTER_TRY(RequireAtLeastZero("momentum", momentum_));
  MUSTER_TRY(RequireFraction("beta1", beta1_));
  MUSTER_TRY(RequireFraction("beta2", beta2_));
  MUSTER_TRY(RequireAtLeastZero("epsilon", epsilon_));
  MUSTER_TRY(RequireAtLeastZero("initial_accumulator", initial_accumulator_));
  MUSTER_TRY(RequireAtLeastZero("l1", l1_));
  MUSTER_TRY(RequireAtLeastZero("l2", l2_));
  MUSTER_TRY(RequireAtLeastZero("ftrl_beta", ftrl_beta_));
  if (kind_ != RuleKind::kFtrl) return Ok();
  if (weight_decay_ != 0) {
    return InvalidArgument("optimizer.weight_decay is {}; ftrl has l2 instead", weight_decay_);
  }
  // FTRL's values are a function of n, z and alpha: another alpha would rescale all of them.
  if (!schedule_.constant()) {
    return InvalidArgument(
        "optimizer.schedule: ftrl lowers each weight's learning rate by itself; only a constant "
        "schedule without warm-up is possible");
  }
  if (ftrl_beta_ + initial_accumulator_ + l2_ == 0) {
    return InvalidArgument(
        "optimizer: ftrl needs one of ftrl_beta, initial_accumulator and l2 above 0");
  }
  return Ok();
}

bool Optimizer::SlotIsZero(std::size_t slot) const {
  return kind_ != RuleKind::kFtrl && (kind_ != RuleKind::kAdagrad || initial_accumulator_ == 0) &&
         slot < slots_.size();
}

void Optimizer::FillSlot(std::size_t slot, std::span<const float> values,
                         std::span<float> into) const {
  if (kind_ == RuleKind::kFtrl && slot == 1) {
    // The z for which the initial values are what FTRL would choose, so that they are kept.
    const double rate = (ftrl_beta_ + std::sqrt(initial_accumulator_)) / learning_rate_ + l2_;
    for (std::size_t i = 0; i < into.size(); ++i) {
      const double value = values[i];
      const double l1 = value == 0 ? 0 : std::copysign(l1_, value);
      into[i] = static_cast<float>(-(value * rate) - l1);
    }
    return;
  }
  std::fill(into.begin(), into.end(), static_cast<float>(initial_slot()));
}

double Optimizer::initial_slot() const {
  const bool accumulator = kind_ == RuleKind::kAdagrad || kind_ == RuleKind::kFtrl;
  return accumulator ? initial_accumulator_ : 0;
}

Rule Optimizer::RuleOf(std::uint64_t t, std::uint64_t update) const {
  return RuleAt<float>(update, learning_rate_ * schedule_.Factor(t));
}

template <class T>
BasicRule<T> Optimizer::RuleAt(std::uint64_t t, double rate) const {
  BasicRule<T> rule;
  rule.kind = kind_;
  rule.learning_rate = static_cast<T>(rate);
  rule.weight_decay = static_cast<T>(weight_decay_);
  rule.momentum = static_cast<T>(momentum_);
  rule.epsilon = static_cast<T>(epsilon_);
  rule.l1 = static_cast<T>(l1_);
  rule.l2 = static_cast<T>(l2_);
  rule.ftrl_beta = static_cast<T>(ftrl_beta_);
  if (kind_ == RuleKind::kAdam || kind_ == RuleKind::kAdamW) {
    const auto step = static_cast<double>(t);
    rule.beta1 = static_cast<T>(beta1_);
    rule.beta2 = static_cast<T>(beta2_);
    rule.one_minus_beta1 = static_cast<T>(1 - beta1_);
    rule.one_minus_beta2 = static_cast<T>(1 - beta2_);
    rule.step_size = static_cast<T>(rate / (1 - std::pow(beta1_, step)));
    rule.root_correction2 = static_cast<T>(std::sqrt(1 - std::pow(beta2_, step)));
    rule.decay = static_cast<T>(1 - rate * weight_decay_);
  }
  return rule;
}

template BasicRule<float> Optimizer::RuleAt(std::uint64_t t, double rate) const;
template BasicRule<double> Optimizer::RuleAt(std::uint64_t t, double rate) const;

}  // namespace muster::ps
