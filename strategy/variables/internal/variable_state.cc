#include "strategy/variables/internal/variable_state.h"

#include <algorithm>
#include <functional>

#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/context.h"
#include "strategy/core/default_strategy.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/internal/runs.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"

namespace muster::internal {
namespace {

[[noreturn]] void RaiseNoValue(const std::string& name) {
  raise(FailedPrecondition(
      "variable {} is not initialised: call initialize() or assign() a value first", name));
}

}  // namespace

void VariableState::Adopt(int index, torch::Tensor data, std::vector<torch::Tensor> adopted) {
  std::unique_ptr<Component>& component = components[static_cast<std::size_t>(index)];
  auto made = std::make_unique<AdoptedComponent>(component->name(), component->place(),
                                                 std::move(data), std::move(adopted));
  adopted_.resize(components.size());
  adopted_[static_cast<std::size_t>(index)] = made.get();
  component = std::move(made);
}

ReplicaContext* VariableState::Replica() const {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame == nullptr || frame->kind != Frame::Kind::kReplica ||
      frame->strategy != strategy.get()) {
    return nullptr;
  }
  return frame->replica;
}

torch::Tensor VariableState::ReadComponent(int index) {
  Sync();
  torch::Tensor leaf = at(index).Leaf(detail::current_replica() + 1, trainable);
  if (!leaf.defined()) RaiseNoValue(name);
  return leaf;
}

torch::Tensor VariableState::ReadNearest() {
  Sync();
  const device::Place here = device::PlaceScope::Current();
  const auto near = std::find_if(components.begin(), components.end(),
                                 [&](const auto& one) { return one->place() == here; });
  torch::Tensor value = (near != components.end() ? **near : at(0)).Snapshot();
  if (!value.defined()) RaiseNoValue(name);
  return value;
}

torch::Tensor VariableState::Primary() {
  Sync();
  torch::Tensor value = at(0).Snapshot();
  if (!value.defined()) RaiseNoValue(name);
  return value;
}

Component::Form VariableState::PrimaryForm() {
  Sync();
  std::optional<Component::Form> form = at(0).form();
  if (!form.has_value()) RaiseNoValue(name);
  return *std::move(form);
}

torch::Tensor VariableState::Read() {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame != nullptr && frame->kind == Frame::Kind::kReplica && frame->strategy != &*strategy &&
      &*strategy != &default_strategy()) {
    if (policy->components_equal() && strategy->shares_devices_with(*frame->strategy)) {
      return ReadNearest();
    }
    raise(FailedPrecondition(
        "Mixing different Strategy objects: variable {} of a {} is read in a replica of another "
        "strategy ({})",
        name, strategy->name(), frame->strategy->name()));
  }
  const int own = OwnComponent();
  return own >= 0 ? ReadComponent(own) : policy->Read(*this);
}

void VariableState::WriteOne(WriteKind write, int index, const WriteArgument& argument) {
  Component& component = at(index);
  const MutexLock lock(component.write_mutex());
  HideAcross();
  if (component.Apply(write, name, argument)) return;
  if (write != WriteKind::kAssign) {
    raise(FailedPrecondition("{}: variable {} is not initialised: call initialize() first",
                             name_of(write), name));
  }
  const torch::ScalarType given = argument.values.scalar_type();
  const torch::ScalarType type = dtype.value_or(given);
  policy->CheckType(*this, type);
  // As where it has a value already.
  if (!c10::canCast(given, type)) {
    raise(InvalidArgument("variable {} is {} and cannot be assigned {}", name,
                          torch::toString(type), torch::toString(given)));
  }
  if (argument.values.layout() != torch::kStrided) {
    raise(InvalidArgument("variable {} cannot be assigned a sparse tensor: give to_dense() of it",
                          name));
  }
  component.Assign(argument.values, type);
}

void VariableState::WriteAll(WriteKind write, const ArgumentOf& argument) {
  VariableState* const source = argument.source() == nullptr ? this : argument.source();
  const bool before = std::less<>()(source, this);
  // Both in one order, whoever assigns which to which.
  const RecursiveMutexLock first(before ? source->mutex_ : mutex_);
  const RecursiveMutexLock second(before ? mutex_ : source->mutex_);
  // All of them before anything is written, which they may be read from.
  std::vector<WriteArgument> all;
  for (int index = 0; index < size(); ++index) {
    WriteArgument& one = all.emplace_back(argument(index));
    const bool shares = std::ranges::any_of(
        adopted_, [&](const AdoptedComponent* component) { return component->Holds(one.values); });
    if (shares) one.values = one.values.clone();
  }
  for (int index = 0; index < size(); ++index) {
    WriteOne(write, index, all[static_cast<std::size_t>(index)]);
  }
}

// Settles where the writer is, then asks the policy.
void VariableState::Write(WriteKind write, int component, const ArgumentOf& argument) {
  // A plain variable of no strategy belongs to everybody.
  if (&*strategy != &default_strategy()) RequireNoOther(*strategy);
  // What is assigned to all replaces what was done to one, too.
  if (component >= 0 || write != WriteKind::kAssign) Sync();
  if (component >= 0) return WriteOne(write, component, argument(component));
  policy->CheckWrite(*this, write);
  if (ReplicaContext* const replica = Replica()) {
    return policy->WriteInReplica(*this, write, *replica, argument);
  }
  const int own = OwnComponent();  // in update context
  if (own >= 0) return WriteOne(write, own, argument(own));
  policy->WriteAcross(*this, write, argument);
}

void VariableState::Sync() {
  const Strategy& of = *strategy;
  if (of_copies && !of.runs().any()) TakeChanges();
}

// A change of the first copy goes to all others, unless each copy has a value of its own and all
// were changed (each then keeps what it was given).
void VariableState::TakeChanges() {
  if (adopted_.empty()) return;
  const RecursiveMutexLock lock(mutex_);
  std::vector<int> changed;
  for (int index = 0; index < size(); ++index) {
    if (adopted(index).TakeChanges()) changed.push_back(index);
  }
  if (changed.empty()) return;
  HideAcross();
  const bool equal = policy->components_equal();
  if (changed[0] != 0 && equal) {
    raise(FailedPrecondition(
        "{} was changed outside run(), {} was not: the copies of a module must stay equal; change "
        "the first one (net->), which all others follow, or assign() to its variable",
        at(changed[0]).name(), name));
  }
  if (changed[0] == 0 && (equal || static_cast<int>(changed.size()) < size())) {
    const torch::Tensor value = at(0).Snapshot();
    for (int index = 1; index < size(); ++index) {
      const MutexLock write(at(index).write_mutex());
      at(index).Assign(value, value.scalar_type());
    }
  }
  Settle();
}

void VariableState::ShowAcross() {
  if (!policy->shows_across()) return;
  const RecursiveMutexLock lock(mutex_);
  if (shows_across_.exchange(true)) return;
  const torch::Tensor across = CopyAt(at(0).place(), policy->ReadHere(*this), *dtype);
  if (!across.equal(at(0).Snapshot())) adopted(0).Show(across);
}

void VariableState::HideAcross() {
  if (shows_across_.exchange(false)) adopted(0).Hide();
}

void VariableState::Settle() {
  for (AdoptedComponent* const component : adopted_) component->Settle();
}

// Several components have one value, which a function of parts may not make twice; several
// processes agree on the first one's.
bool VariableState::InitializeInParts(const InitialValue& initial) {
  if (!initial.parts().has_value() || strategy->collectives() != nullptr) return false;
  const torch::ScalarType type = dtype.value_or(initial.parts()->type);
  policy->CheckType(*this, type);
  const RecursiveMutexLock lock(mutex_);
  const Component::Form form{.type = type, .sizes = initial.parts()->shape};
  if (at(0).Declare(form)) {
    for (int index = 1; index < size(); ++index) (void)at(index).Declare(form);
    return true;
  }
  const MutexLock write(at(0).write_mutex());
  return size() == 1 && at(0).TakeParts(initial, type);
}

void VariableState::Initialize(const torch::Tensor& own) {
  const Strategy& of = *strategy;
  torch::Tensor value = own;
  if (collectives::Group* const between = of.collectives()) {
    value = value_of_first(*between, CallOfFirstValue(name), own);
  }
  if (!value.defined()) {
    raise(InvalidArgument("the initial value of variable {} is undefined", name));
  }
  if (value.layout() != torch::kStrided) {
    raise(
        InvalidArgument("the initial value of variable {} is sparse: give to_dense() of it", name));
  }
  const torch::ScalarType type = dtype.value_or(value.scalar_type());
  policy->CheckType(*this, type);
  const RecursiveMutexLock lock(mutex_);
  HideAcross();
  for (const auto& component : components) {
    const MutexLock write(component->write_mutex());
    component->Assign(value, type);
  }
}

void VariableState::Restore(const torch::Tensor& value) {
  (void)*strategy;
  WriteAll(WriteKind::kAssign,
           [&](int index) { return WriteArgument{.values = policy->PartOf(*this, index, value)}; });
}

}  // namespace muster::internal
