#include "strategy/variables/variable.h"

#include <ostream>

#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/context.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/strategy.h"
#include "strategy/variables/internal/variable_state.h"

namespace muster {

using internal::VariableState;
using internal::WriteArgument;
using internal::WriteKind;

VariableValue::VariableValue(const Variable& variable)
    : variable_(variable.state()), component_(variable.component_index()) {
  if (!variable.valid()) raise(FailedPrecondition("the operand is a handle of no variable"));
}

torch::Tensor VariableValue::for_component(int index, int count) const {
  if (variable_ != nullptr) {
    if (component_ >= 0) return variable_->ReadComponent(component_);
    return variable_->policy->ReadFor(*variable_, index);
  }
  if (mirrored_.empty()) {
    if (!tensor_.defined())
      raise(InvalidArgument("a variable cannot be assigned no tensor at all"));
    return tensor_;
  }
  const auto size = static_cast<int>(mirrored_.size());
  if (size != count && count != 1 && size != 1) {
    raise(InvalidArgument("a mirrored value of {} components for a variable of {}", size, count));
  }
  return mirrored_[static_cast<std::size_t>(size == count ? index : 0)];
}

namespace {

VariableState& StateOf(const std::shared_ptr<VariableState>& state) {
  if (state == nullptr) {
    raise(FailedPrecondition("this handle is of no variable: Variable::create() makes one"));
  }
  return *state;
}

torch::Tensor WriteValue(const Variable& variable, WriteKind kind, const VariableValue& value,
                         bool read_value) {
  VariableState& state = StateOf(variable.state());
  const auto argument = [&](int index) {
    return WriteArgument{.number = value.is_number(),
                         .values = value.for_component(index, state.size())};
  };
  state.Write(kind, variable.component_index(), {argument, value.source()});
  return read_value ? variable.value() : torch::Tensor();
}

torch::Tensor WriteRows(const Variable& variable, WriteKind kind, const IndexedSlices& slices,
                        bool read_value) {
  VariableState& state = StateOf(variable.state());
  state.Write(kind, variable.component_index(), [&](int) {
    if (!slices.values.defined()) {
      raise(InvalidArgument("{} of variable {}: no values", name_of(kind), state.name));
    }
    return WriteArgument{
        .number = slices.values.dim() == 0, .values = slices.values, .indices = slices.indices};
  });
  return read_value ? variable.value() : torch::Tensor();
}

}  // namespace

const std::string& Variable::name() const {
  VariableState& state = StateOf(state_);
  return component_ < 0 ? state.name : state.at(component_).name();
}

Strategy& Variable::strategy() const { return *StateOf(state_).strategy; }
Variable::Kind Variable::kind() const { return StateOf(state_).policy->kind(); }
VariableSynchronization Variable::synchronization() const {
  return StateOf(state_).synchronization;
}
VariableAggregation Variable::aggregation() const { return StateOf(state_).aggregation; }
bool Variable::trainable() const { return StateOf(state_).trainable; }

torch::ScalarType Variable::dtype() const {
  VariableState& state = StateOf(state_);
  return state.dtype.has_value() ? *state.dtype : state.PrimaryForm().type;
}

std::vector<std::int64_t> Variable::sizes() const { return StateOf(state_).PrimaryForm().sizes; }

std::string Variable::device() const {
  VariableState& state = StateOf(state_);
  const int index = component_ >= 0 ? component_ : std::max(0, state.OwnComponent());
  return state.at(index).device();
}

std::vector<std::string> Variable::devices() const {
  VariableState& state = StateOf(state_);
  if (component_ >= 0) return {state.at(component_).device()};
  std::vector<std::string> devices;
  for (const auto& component : state.components) {
    devices.push_back(component->device());
  }
  return devices;
}

int Variable::size() const { return component_ >= 0 ? 1 : StateOf(state_).size(); }

Variable Variable::component(int index) const {
  if (index < 0 || index >= size()) {
    raise(OutOfRange("component {} of variable {}, which has {}", index, name(), size()));
  }
  return component_ >= 0 ? *this : Variable(state_, index);
}

std::vector<Variable> Variable::components() const {
  std::vector<Variable> all;
  for (int index = 0; index < size(); ++index) all.push_back(component(index));
  return all;
}

Variable Variable::container() const { return Variable(state_); }

bool Variable::is_initialized() const {
  VariableState& state = StateOf(state_);
  if (component_ >= 0) return state.at(component_).form().has_value();
  for (const auto& component : state.components) {
    if (!component->form().has_value()) return false;
  }
  return true;
}

void Variable::initialize() const {
  VariableState& state = StateOf(state_);
  ReplicaContext* const replica = state.Replica();
  const auto initialize = [&] {
    if (state.InitializeInParts(state.initial_value)) return;
    state.Initialize(
        internal::brought_by(state.strategy->collectives(), [&] { return state.initial_value(); }));
  };
  if (replica == nullptr) return initialize();
  struct Nothing {
  } mine;
  replica->meet("initialize variable " + state.name, mine, [&](const Arrivals<Nothing>&) {
    const internal::FrameGuard merge(
        {.kind = internal::Frame::Kind::kMerge, .strategy = &*state.strategy});
    initialize();
  });
}

torch::Tensor Variable::value() const {
  VariableState& state = StateOf(state_);
  return component_ >= 0 ? state.ReadComponent(component_) : state.Read();
}

torch::Tensor Variable::assign(const VariableValue& value, bool read_value) const {
  return WriteValue(*this, WriteKind::kAssign, value, read_value);
}
torch::Tensor Variable::assign_add(const VariableValue& value, bool read_value) const {
  return WriteValue(*this, WriteKind::kAssignAdd, value, read_value);
}
torch::Tensor Variable::assign_sub(const VariableValue& value, bool read_value) const {
  return WriteValue(*this, WriteKind::kAssignSub, value, read_value);
}
torch::Tensor Variable::scatter_add(const IndexedSlices& slices, bool read_value) const {
  return WriteRows(*this, WriteKind::kScatterAdd, slices, read_value);
}
torch::Tensor Variable::scatter_sub(const IndexedSlices& slices, bool read_value) const {
  return WriteRows(*this, WriteKind::kScatterSub, slices, read_value);
}
torch::Tensor Variable::scatter_mul(const IndexedSlices& slices, bool read_value) const {
  return WriteRows(*this, WriteKind::kScatterMul, slices, read_value);
}
torch::Tensor Variable::scatter_div(const IndexedSlices& slices, bool read_value) const {
  return WriteRows(*this, WriteKind::kScatterDiv, slices, read_value);
}
torch::Tensor Variable::scatter_min(const IndexedSlices& slices, bool read_value) const {
  return WriteRows(*this, WriteKind::kScatterMin, slices, read_value);
}
torch::Tensor Variable::scatter_max(const IndexedSlices& slices, bool read_value) const {
  return WriteRows(*this, WriteKind::kScatterMax, slices, read_value);
}
torch::Tensor Variable::scatter_update(const IndexedSlices& slices, bool read_value) const {
  return WriteRows(*this, WriteKind::kScatterUpdate, slices, read_value);
}

std::ostream& operator<<(std::ostream& out, const Variable& variable) {
  if (!variable.valid()) return out << "no variable";
  out << "variable " << variable.name();
  if (!variable.is_initialized()) return out << ", not initialised";
  const bool apart =
      variable.component_index() < 0 && !variable.state()->policy->has_value_across();
  if (!apart) return out << '\n' << variable.value();
  for (const Variable& component : variable.components()) {
    out << '\n' << component.name() << '\n' << component.value();
  }
  return out;
}

std::vector<Variable> Strategy::local_results(const Variable& variable) const {
  return variable.components();
}

}  // namespace muster
