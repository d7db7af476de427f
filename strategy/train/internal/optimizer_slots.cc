#include "strategy/train/internal/optimizer_slots.h"

#include <cmath>
#include <sstream>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "common/storage/checkpoint.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/variables/internal/component.h"

namespace muster::internal {
namespace {

namespace optim = torch::optim;
using optim::Optimizer;
using optim::OptimizerParamState;

// libtorch finds a parameter's state by its address: a number since 2.0, text before.
template <class Key>
Key KeyOf(const torch::Tensor& parameter) {
  void* const address = parameter.unsafeGetTensorImpl();
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream text;
    text << address;
    return text.str();
  } else {
    return address;
  }
}
using StateKey = std::decay_t<decltype(std::declval<Optimizer&>().state().begin()->first)>;

template <class State>
std::vector<Slot> AdamSlots(State& state) {
  return {{.name = "step", .step = &state.step()},
          {.name = "exp_avg", .tensor = &state.exp_avg()},
          {.name = "exp_avg_sq", .tensor = &state.exp_avg_sq()},
          {.name = "max_exp_avg_sq", .tensor = &state.max_exp_avg_sq(), .required = false}};
}

// Those of the parameter's group.
const optim::OptimizerOptions& OptionsOf(const Optimizer& optimizer,
                                         const torch::Tensor& parameter) {
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const torch::Tensor& one : group.params()) {
      if (one.is_same(parameter) && group.has_options()) return group.options();
    }
  }
  return optimizer.defaults();
}

template <class State, class Options>
void AddAmsgrad(OptimizerParamState& state, const Options& options,
                const torch::Tensor& parameter) {
  torch::Tensor& largest = static_cast<State&>(state).max_exp_avg_sq();
  if (options.amsgrad() && !largest.defined()) largest = torch::zeros_like(parameter);
}

// What the optimizer's own options ask for beside what is restored, which was saved under others:
// as in the first step. libtorch makes it there alone, and fails where a state lacks it.
void AddMissing(OptimizerParamState& state, const optim::OptimizerOptions& options,
                const torch::Tensor& parameter) {
  if (const auto* const adam = dynamic_cast<const optim::AdamOptions*>(&options)) {
    AddAmsgrad<optim::AdamParamState>(state, *adam, parameter);
  } else if (const auto* const adamw = dynamic_cast<const optim::AdamWOptions*>(&options)) {
    AddAmsgrad<optim::AdamWParamState>(state, *adamw, parameter);
  } else if (const auto* const rms = dynamic_cast<const optim::RMSpropOptions*>(&options)) {
    auto& of = static_cast<optim::RMSpropParamState&>(state);
    if (rms->momentum() > 0 && !of.momentum_buffer().defined()) {
      of.momentum_buffer(torch::zeros_like(parameter));
    }
    if (rms->centered() && !of.grad_avg().defined()) of.grad_avg(torch::zeros_like(parameter));
  }
}

[[noreturn]] void RaiseUnknown(const char* what) {
  raise(
      Unimplemented("{}: the state of optimizers other than SGD, Adam, AdamW, Adagrad and RMSprop "
                    "has no names here",
                    what));
}

}  // namespace

std::vector<Slot> SlotsOf(OptimizerParamState& state) {
  if (auto* const sgd = dynamic_cast<optim::SGDParamState*>(&state)) {
    return {{.name = "momentum", .tensor = &sgd->momentum_buffer()}};
  }
  if (auto* const adam = dynamic_cast<optim::AdamParamState*>(&state)) return AdamSlots(*adam);
  if (auto* const adamw = dynamic_cast<optim::AdamWParamState*>(&state)) return AdamSlots(*adamw);
  if (auto* const adagrad = dynamic_cast<optim::AdagradParamState*>(&state)) {
    return {{.name = "step", .step = &adagrad->step()}, {.name = "sum", .tensor = &adagrad->sum()}};
  }
  if (auto* const rms = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return {{.name = "step", .step = &rms->step()},
            {.name = "square_avg", .tensor = &rms->square_avg()},
            {.name = "momentum", .tensor = &rms->momentum_buffer(), .required = false},
            {.name = "grad_avg", .tensor = &rms->grad_avg(), .required = false}};
  }
  RaiseUnknown("optimizer state");
}

std::unique_ptr<OptimizerParamState> NewState(const Optimizer& optimizer,
                                              const torch::Tensor& parameter) {
  const optim::OptimizerOptions& options = optimizer.defaults();
  if (dynamic_cast<const optim::SGDOptions*>(&options) != nullptr) {
    return std::make_unique<optim::SGDParamState>();
  }
  if (dynamic_cast<const optim::AdamOptions*>(&options) != nullptr) {
    return std::make_unique<optim::AdamParamState>();
  }
  if (dynamic_cast<const optim::AdamWOptions*>(&options) != nullptr) {
    return std::make_unique<optim::AdamWParamState>();
  }
  if (const auto* const adagrad = dynamic_cast<const optim::AdagradOptions*>(&options)) {
    auto state = std::make_unique<optim::AdagradParamState>();
    const torch::NoGradGuard no_grad;
    state->step(0);
    state->sum(torch::full_like(parameter, adagrad->initial_accumulator_value()));
    return state;
  }
  if (dynamic_cast<const optim::RMSpropOptions*>(&options) != nullptr) {
    return std::make_unique<optim::RMSpropParamState>();
  }
  RaiseUnknown("optimizer state");
}

OptimizerParamState* FindState(Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto found = optimizer.state().find(KeyOf<StateKey>(parameter));
  return found == optimizer.state().end() ? nullptr : found->second.get();
}

void SetState(Optimizer& optimizer, const torch::Tensor& parameter,
              std::unique_ptr<OptimizerParamState> state) {
  optimizer.state()[KeyOf<StateKey>(parameter)] = std::move(state);
}

std::vector<std::string> SlotNames(const Optimizer& optimizer,
                                   const std::vector<torch::Tensor>& parameters,
                                   const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const Slot& slot : SlotsOf(*NewState(optimizer, parameters[i]))) {
      all.push_back(storage::SlotName(names[i], slot.name));
    }
  }
  return all;
}

std::map<std::string, torch::Tensor> ReadSlots(Optimizer& optimizer,
                                               const std::vector<torch::Tensor>& parameters,
                                               const std::vector<std::string>& names) {
  std::map<std::string, torch::Tensor> slots;
  ReadSlotsInto(optimizer, parameters, names, slots);
  return slots;
}

void ReadSlotsInto(Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                   const std::vector<std::string>& names,
                   std::map<std::string, torch::Tensor>& slots) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> earlier = std::exchange(slots, {});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    OptimizerParamState* const state = FindState(optimizer, parameters[i]);
    if (state == nullptr) continue;
    for (const Slot& slot : SlotsOf(*state)) {
      const std::string name = storage::SlotName(names[i], slot.name);
      if (slot.step != nullptr) slots[name] = torch::scalar_tensor(*slot.step, torch::kLong);
      if (slot.tensor == nullptr || !slot.tensor->defined()) continue;
      torch::Tensor& kept = slots[name] = std::move(earlier[name]);
      CopyInto(*slot.tensor, kept);
    }
  }
}

void CheckSlot(const std::string& name, const torch::Tensor& value, at::IntArrayRef sizes,
               bool count) {
  if (value.defined() && value.layout() != torch::kStrided) {
    raise(InvalidArgument("optimizer state {} is sparse: give to_dense() of it", name));
  }
  if (!value.defined() || (count ? value.numel() != 1 : !value.sizes().equals(sizes))) {
    raise(InvalidArgument("optimizer state {} has shape {}, needed is {}", name,
                          value.defined() ? ShapeText(value) : "of nothing",
                          count ? "one number" : ShapeText(sizes)));
  }
  if (!count) return;
  const bool real = !torch::isComplexType(value.scalar_type());
  const double number = real ? value.item<double>() : -1;
  if (number >= 0 && number < 0x1p63 && number == std::floor(number)) return;
  raise(InvalidArgument("optimizer state {} is {}: steps are counted in whole numbers from 0 on",
                        name, real ? fmt::format("{}", number) : "complex"));
}

void CheckSlots(const Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                const std::vector<std::string>& names,
                const std::map<std::string, torch::Tensor>& slots) {
  std::size_t known = 0;
  std::map<std::string, bool> wanted;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::size_t there = 0;
    std::string missing;
    for (const Slot& slot : SlotsOf(*NewState(optimizer, parameters[i]))) {
      const std::string name = storage::SlotName(names[i], slot.name);
      wanted[name] = true;
      const auto found = slots.find(name);
      if (found == slots.end()) {
        if (slot.required && missing.empty()) missing = name;
        continue;
      }
      ++there;
      CheckSlot(name, found->second, parameters[i].sizes(), slot.step != nullptr);
    }
    known += there;
    if (there > 0 && !missing.empty()) {
      raise(InvalidArgument("optimizer state {} is missing, though others of {} are there", missing,
                            names[i]));
    }
  }
  if (known == slots.size()) return;
  for (const auto& [name, value] : slots) {
    if (!wanted.contains(name)) {
      raise(InvalidArgument("optimizer state {} belongs to no parameter of this optimizer", name));
    }
  }
}

void WriteSlots(Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                const std::vector<std::string>& names,
                const std::map<std::string, torch::Tensor>& slots) {
  const torch::NoGradGuard no_grad;
  const bool from_the_start =
      dynamic_cast<const optim::AdagradOptions*>(&optimizer.defaults()) != nullptr;
  optimizer.state().clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::unique_ptr<OptimizerParamState> state = NewState(optimizer, parameters[i]);
    bool any = from_the_start;
    for (const Slot& slot : SlotsOf(*state)) {
      const auto found = slots.find(storage::SlotName(names[i], slot.name));
      if (found == slots.end()) continue;
      any = true;
      if (slot.step != nullptr) *slot.step = found->second.item<std::int64_t>();
      if (slot.tensor != nullptr) {
        *slot.tensor = torch::empty_like(parameters[i]).copy_(found->second);
      }
    }
    if (!any) continue;
    AddMissing(*state, OptionsOf(optimizer, parameters[i]), parameters[i]);
    SetState(optimizer, parameters[i], std::move(state));
  }
}

}  // namespace muster::internal
