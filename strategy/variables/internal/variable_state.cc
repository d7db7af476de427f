#include "strategy/variables/internal/variable_state.h"

#include <algorithm>

#include <c10/core/InferenceMode.h>

#include "common/base/words.h"
#include "device/place.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/core/context.h"
#include "strategy/core/default_strategy.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/internal/runs.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"
#include "strategy/values/internal/reduction.h"
#include "strategy/values/sparse.h"

namespace muster::internal {
namespace {

// Values of variables are ordinary tensors without a history, whatever mode the caller is in.
struct Ordinary {
  explicit Ordinary(int place) : here(place) {}
  const c10::InferenceMode inference{false};  // first: it turns gradients on
  const torch::NoGradGuard no_grad;
  const device::PlaceScope here;
};

std::int64_t VersionOf(const torch::Tensor& tensor) {
  const bool counts = tensor.defined() && !tensor.is_inference();
  return counts ? static_cast<std::int64_t>(tensor._version()) : 0;
}

bool HasGradients(torch::ScalarType type) {
  return torch::isFloatingType(type) || torch::isComplexType(type);
}

}  // namespace

torch::Tensor Component::Snapshot() const {
  const std::lock_guard lock(mutex_);
  if (adopted_.empty()) return data_;
  CheckAdopted();
  const Ordinary ordinary(device_);
  return device::Placed(data_.clone(), device_);
}

torch::Tensor Component::Leaf(int slot, bool trainable) {
  const std::lock_guard lock(mutex_);
  if (!data_.defined()) return {};
  const auto index = static_cast<std::size_t>(slot);
  if (!adopted_.empty()) CheckAdopted();
  if (index < adopted_.size() && adopted_[index].defined()) return adopted_[index];
  // A replica computes with what lies on its own card.
  const int reader = slot > 0 ? device::PlaceScope::Current() : device_;
  const bool away = !device::SameDevice(device::TorchDevice(reader), data_.device());
  const Ordinary ordinary(away ? reader : device_);
  const bool gradients = trainable && HasGradients(data_.scalar_type());
  // Buffers are written by their module, which tells nobody.
  if (!adopted_.empty() && !gradients) return away ? here(data_) : data_.clone();
  // Parameters, too, may be written by whoever has the module: an initialiser.
  if (const std::int64_t version = VersionOfAdopted(); version != version_of_leaves_) {
    leaves_.clear();
    version_of_leaves_ = version;
  }
  if (leaves_.size() <= index) leaves_.resize(index + 1);
  torch::Tensor& leaf = leaves_[index];
  // A plain variable is read by replicas of several strategies.
  if (!leaf.defined() || !device::SameDevice(leaf.device(), device::TorchDevice(reader))) {
    leaf = (away ? here(data_) : adopted_.empty() ? data_ : data_.clone()).variable_data();
    leaf.set_requires_grad(gradients);
  }
  return leaf;
}

void Component::Store(const torch::Tensor& fresh) {
  const std::lock_guard lock(mutex_);
  leaves_.clear();
  if (adopted_.empty()) {
    data_ = fresh;
    return;
  }
  const Ordinary ordinary(device_);
  data_.copy_(fresh);
  if (shown_.defined() || Moved()) Front().set_data(data_);
  shown_ = torch::Tensor();
  RefreshCopies();
  Note();
}

bool Component::ChangeUnshared(const std::function<void(const torch::Tensor&)>& change) {
  const std::lock_guard lock(mutex_);
  if (!adopted_.empty() || !data_.defined() || data_.use_count() != 1) return false;
  std::size_t holders = 1;
  for (const torch::Tensor& leaf : leaves_) {
    if (!leaf.defined()) continue;
    if (leaf.use_count() != 1) return false;
    ++holders;
  }
  // A view, or what a backward pass has kept.
  if (data_.storage().use_count() != holders) return false;
  leaves_.clear();
  const Ordinary ordinary(device_);
  change(data_);
  return true;
}

void Component::Adopt(torch::Tensor data, std::vector<torch::Tensor> leaves) {
  const std::lock_guard lock(mutex_);
  adopted_type_ = data.scalar_type();
  data_ = std::move(data);
  adopted_ = std::move(leaves);
  for (const torch::Tensor& leaf : adopted_) {
    if (leaf.defined() && !device::SameDevice(leaf.device(), data_.device())) {
      copies_.push_back(leaf);
    }
  }
  Note();
}

const torch::Tensor& Component::Front() const {
  return *std::find_if(adopted_.begin(), adopted_.end(),
                       [](const torch::Tensor& leaf) { return leaf.defined(); });
}

bool Component::Moved() const {
  const torch::Tensor& front = Front();
  return device::SameDevice(front.device(), data_.device()) &&
         !front.is_alias_of(shown_.defined() ? shown_ : data_);
}

void Component::Note() {
  settled_ = VersionOfAdopted();
  settled_front_ = VersionOf(Front());
}

bool Component::TakeChanges() {
  const std::lock_guard lock(mutex_);
  const torch::Tensor& front = Front();
  const bool moved = Moved();
  if (!moved && VersionOfAdopted() == settled_) return false;
  CheckAdopted();
  if (!front.sizes().equals(data_.sizes())) {
    raise(FailedPrecondition(
        "{} has shape {} now, but had {} when its module was distributed: a module keeps its "
        "shapes after distribute()",
        name_, ShapeText(front), ShapeText(data_)));
  }
  const Ordinary ordinary(device_);
  const bool near = device::SameDevice(front.device(), data_.device());
  // Else it was written in the memory of the value itself.
  const bool apart = moved || shown_.defined() || !near;
  if (moved || (apart && VersionOf(front) != settled_front_)) {
    data_.copy_(front);
    if (near) front.set_data(data_);
    shown_ = torch::Tensor();
  }
  leaves_.clear();
  RefreshCopies();
  return true;
}

void Component::Settle() {
  const std::lock_guard lock(mutex_);
  Note();
}

void Component::Show(const torch::Tensor& value) {
  const std::lock_guard lock(mutex_);
  const Ordinary ordinary(device_);
  shown_ = value;
  Front().set_data(shown_);
}

void Component::Hide() {
  const std::lock_guard lock(mutex_);
  if (!shown_.defined()) return;
  const Ordinary ordinary(device_);
  Front().set_data(data_);
  shown_ = torch::Tensor();
}

void Component::RefreshCopies() {
  for (const torch::Tensor& copy : copies_) copy.copy_(data_);
}

std::int64_t Component::VersionOfAdopted() const {
  if (adopted_.empty()) return 0;
  std::int64_t version = VersionOf(data_);
  for (const torch::Tensor& leaf : adopted_) version += VersionOf(leaf);
  return version;
}

void Component::CheckAdopted() const {
  const auto check = [this](const torch::Tensor& tensor) {
    if (tensor.scalar_type() == adopted_type_) return;
    raise(FailedPrecondition(
        "{} is {} now, but was {} when its module was distributed: change a module's type "
        "(module->to(dtype)) before distribute()",
        name_, torch::toString(tensor.scalar_type()), torch::toString(adopted_type_)));
  };
  check(data_);
  for (const torch::Tensor& leaf : adopted_) {
    if (leaf.defined()) check(leaf);
  }
}

Component::InPlace::InPlace(Component& component)
    : component_(&component), write_(component.write_mutex_), value_(component.mutex_) {
  component.leaves_.clear();
}

Component::InPlace::~InPlace() {
  if (!value_.owns_lock() || component_->copies_.empty()) return;  // moved from, or nothing to do
  try {
    const Ordinary ordinary(component_->device_);
    component_->RefreshCopies();
  } catch (const c10::Error&) {  // a destructor: a card that fails fails again at its next use
  }
}

torch::Tensor Component::Copy(const torch::Tensor& value, torch::ScalarType dtype) const {
  const Ordinary ordinary(device_);
  const auto options = torch::dtype(dtype).device(device::TorchDevice(device_));
  return device::Placed(torch::empty(value.sizes(), options).copy_(value), device_);
}

ReplicaContext* VariableState::Replica() const {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame == nullptr || frame->kind != Frame::Kind::kReplica ||
      frame->strategy != strategy.get()) {
    return nullptr;
  }
  return frame->replica;
}

int VariableState::OwnComponent() const {
  if (kind == Variable::Kind::kPlain) return 0;
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame == nullptr || frame->strategy != strategy.get()) return -1;
  int index = -1;
  if (frame->kind == Frame::Kind::kReplica) index = frame->replica->replica_id_in_sync_group();
  if (frame->kind == Frame::Kind::kUpdate) index = frame->update_replica;
  return std::min(index, size() - 1);
}

torch::Tensor VariableState::ReadComponent(int index) {
  Sync();
  torch::Tensor leaf = at(index).Leaf(detail::current_replica() + 1, trainable);
  if (!leaf.defined()) {
    raise(FailedPrecondition(
        "variable {} is not initialised: call initialize() or assign() a value first", name));
  }
  return leaf;
}

torch::Tensor VariableState::Primary() {
  Sync();
  torch::Tensor value = at(0).Snapshot();
  if (!value.defined()) {
    raise(FailedPrecondition(
        "variable {} is not initialised: call initialize() or assign() a value first", name));
  }
  return value;
}

torch::Tensor VariableState::Read() {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame != nullptr && frame->kind == Frame::Kind::kReplica && frame->strategy != &*strategy &&
      &*strategy != &default_strategy()) {
    raise(FailedPrecondition(
        "Mixing different Strategy objects: variable {} of a {} is read in a replica of another "
        "strategy ({})",
        name, strategy->name(), frame->strategy->name()));
  }
  const int own = OwnComponent();
  if (own >= 0) return ReadComponent(own);
  return kind == Variable::Kind::kSyncOnRead ? ReadAcross() : ReadComponent(0);
}

torch::Tensor VariableState::ReadAcross() {
  const torch::Tensor first = Primary();
  if (kind != Variable::Kind::kSyncOnRead ||
      aggregation == VariableAggregation::kOnlyFirstReplica) {
    return first;
  }
  if (aggregation == VariableAggregation::kNone) {
    raise(InvalidArgument(
        "Could not convert from VariableAggregation.NONE: variable {} is ON_READ and has no "
        "aggregation; read its components, or read it inside run()",
        name));
  }
  const Ordinary ordinary(at(0).device());
  std::vector<torch::Tensor> values;
  for (const auto& component : components) values.push_back(component->Snapshot());
  const bool sum = aggregation == VariableAggregation::kSum;
  // The mean of equal values is that value, to the last bit: what is saved is what is restored.
  if (!sum && std::all_of(values.begin(), values.end(), [&](const torch::Tensor& value) {
        return value.equal(values[0].to(value.device()));
      })) {
    return first;
  }
  const torch::Tensor result =
      reduce_tensors(sum ? ReduceOp::kSum : ReduceOp::kMean, values, Axes());
  // A sum of one is that one: nobody may get hold of a component's own storage to write in.
  return values.size() == 1 ? result.clone() : result;
}

void VariableState::Store(WriteKind write, int index, const WriteArgument& argument) {
  Component& component = at(index);
  if (is_scatter(write)) {
    try {
      const bool done = component.ChangeUnshared(
          [&](const torch::Tensor& value) { ScatterInto(write, name, value, argument); });
      if (done) return;
    } catch (const c10::Error& error) {
      raise(InvalidArgument("{} of variable {}: {}", name_of(write), name,
                            error.what_without_backtrace()));
    }
  }
  torch::Tensor old = component.Snapshot();
  if (!old.defined()) {
    if (write != WriteKind::kAssign) {
      raise(FailedPrecondition("{}: variable {} is not initialised: call initialize() first",
                               name_of(write), name));
    }
    const torch::ScalarType type = dtype.value_or(argument.values.scalar_type());
    CheckType(type);
    component.Store(component.Copy(argument.values, type));
    return;
  }
  const Ordinary ordinary(component.device());
  try {
    component.Store(device::Placed(Apply(write, name, old, argument), component.device()));
  } catch (const c10::Error& error) {
    raise(InvalidArgument("{} of variable {}: {}", name_of(write), name,
                          error.what_without_backtrace()));
  }
}

void VariableState::WriteOne(WriteKind write, int index, const WriteArgument& argument) {
  const std::lock_guard lock(at(index).write_mutex());
  HideAcross();
  Store(write, index, argument);
}

void VariableState::WriteAll(WriteKind write, const ArgumentOf& argument) {
  const std::lock_guard lock(mutex_);
  for (int index = 0; index < size(); ++index) WriteOne(write, index, argument(index));
}

void VariableState::Write(WriteKind write, int component, const ArgumentOf& argument) {
  // A plain variable of no strategy belongs to everybody.
  if (&*strategy != &default_strategy()) RequireNoOther(*strategy);
  // What is assigned to all replaces what was done to one, too.
  if (component >= 0 || write != WriteKind::kAssign) Sync();
  if (component >= 0) return WriteOne(write, component, argument(component));
  if (kind == Variable::Kind::kPlain) return WriteOne(write, 0, argument(0));
  if (is_scatter(write)) {
    if (kind == Variable::Kind::kSyncOnRead) {
      raise(Unimplemented("{} of variable {}: ON_READ variables have no scatter operations",
                          name_of(write), name));
    }
    const bool reduces =
        aggregation == VariableAggregation::kSum || aggregation == VariableAggregation::kMean;
    if (reduces && write >= WriteKind::kScatterMin) {
      raise(
          Unimplemented("{} of variable {} is not defined for aggregation {}: use NONE or "
                        "ONLY_FIRST_REPLICA",
                        name_of(write), name, name_of(aggregation)));
    }
  }
  if (ReplicaContext* const replica = Replica()) {
    return WriteFromReplica(write, *replica, argument);
  }
  const int own = OwnComponent();  // in update context
  if (own >= 0) return WriteOne(write, own, argument(own));
  WriteAcross(write, argument);
}

void VariableState::WriteFromReplica(WriteKind write, ReplicaContext& replica,
                                     const ArgumentOf& argument) {
  const int own = OwnComponent();
  if (kind == Variable::Kind::kSyncOnRead) return WriteOne(write, own, argument(own));
  if (aggregation == VariableAggregation::kNone) {
    if (kind == Variable::Kind::kAggregating) {
      const int replicas = replica.num_replicas_in_sync();
      raise(InvalidArgument(
          "{} of variable {} inside run(): {} {} its one value, so create it with an "
          "aggregation (SUM, MEAN or ONLY_FIRST_REPLICA) that makes one of theirs",
          name_of(write), name, Counted(replicas, "replica"), Agreeing(replicas, "has", "share")));
    }
    return WriteOne(write, own, argument(own));
  }
  struct Arrival {
    VariableState* variable;
    WriteArgument argument;
  } mine{this, argument(own)};
  replica.meet(fmt::format("{} of variable {}", name_of(write), name), &mine,
               [&](std::vector<void*>& arrivals) {
                 std::vector<WriteArgument> all;
                 for (void* one : arrivals) {
                   const auto& arrival = *static_cast<Arrival*>(one);
                   if (arrival.variable != this) {
                     raise(FailedPrecondition(
                         "replicas write different variables that are both called {}", name));
                   }
                   all.push_back(arrival.argument);
                 }
                 const Ordinary ordinary(at(0).device());
                 const WriteArgument one = Aggregate(write, name, aggregation, all, Primary());
                 WriteAll(write, [&](int) { return one; });
               });
}

void VariableState::WriteAcross(WriteKind write, const ArgumentOf& argument) {
  if (kind != Variable::Kind::kSyncOnRead || aggregation != VariableAggregation::kSum) {
    return WriteAll(write, argument);
  }
  if (write != WriteKind::kAssign) {
    raise(InvalidArgument(
        "SyncOnReadVariable does not support {} in cross-replica context with aggregation SUM "
        "(variable {}): its value is spread over the replicas; assign() the new total",
        name_of(write), name));
  }
  WriteAll(write, [&](int index) {
    WriteArgument one = argument(index);
    const torch::Tensor old = at(index).Snapshot();
    const torch::ScalarType type =
        old.defined() ? old.scalar_type() : dtype.value_or(one.values.scalar_type());
    if (c10::canCast(one.values.scalar_type(), type))
      one.values = Share(one.values.to(type), index);
    return one;
  });
}

torch::Tensor VariableState::Share(const torch::Tensor& total, int index) const {
  const Ordinary ordinary(0);
  if (!torch::isIntegralType(total.scalar_type(), /*includeBool=*/true)) return total / size();
  const torch::Tensor each = total.div(size(), "trunc");
  return index == 0 ? total - each * (size() - 1) : each;
}

torch::Tensor VariableState::ToSave() {
  Sync();
  return ReadAcross();
}

void VariableState::Sync() {
  const Strategy& of = *strategy;
  if (of_copies && !of.runs().any()) TakeChanges();
}

void VariableState::TakeChanges() {
  const std::lock_guard lock(mutex_);
  std::vector<int> changed;
  for (int index = 0; index < size(); ++index) {
    if (at(index).TakeChanges()) changed.push_back(index);
  }
  if (changed.empty()) return;
  HideAcross();
  const bool on_read = kind == Variable::Kind::kSyncOnRead;
  if (changed[0] != 0 && !on_read) {
    raise(FailedPrecondition(
        "{} was changed outside run(), {} was not: the copies of a module must stay equal; change "
        "the first one (net->), which all others follow, or assign() to its variable",
        at(changed[0]).name(), name));
  }
  if (changed[0] == 0 && !(on_read && static_cast<int>(changed.size()) == size())) {
    const torch::Tensor value = at(0).Snapshot();
    for (int index = 1; index < size(); ++index) {
      const std::lock_guard write(at(index).write_mutex());
      at(index).Store(at(index).Copy(value, value.scalar_type()));
    }
  }
  for (const auto& component : components) component->Settle();
}

void VariableState::ShowAcross() {
  if (kind != Variable::Kind::kSyncOnRead || aggregation != VariableAggregation::kMean) return;
  const std::lock_guard lock(mutex_);
  if (shows_across_.exchange(true)) return;
  const torch::Tensor across = at(0).Copy(ReadAcross(), *dtype);
  if (!across.equal(at(0).Snapshot())) at(0).Show(across);
}

void VariableState::HideAcross() {
  if (shows_across_.exchange(false)) at(0).Hide();
}

void VariableState::Settle() {
  for (const auto& component : components) component->Settle();
}

void VariableState::CheckType(torch::ScalarType type) const {
  if (synchronization != VariableSynchronization::kOnRead ||
      aggregation != VariableAggregation::kMean ||
      !torch::isIntegralType(type, /*includeBool=*/true)) {
    return;
  }
  raise(InvalidArgument(
      "variable {} is ON_READ with aggregation MEAN and {}: the mean of integers is none; use a "
      "floating type, SUM, or ONLY_FIRST_REPLICA",
      name, torch::toString(type)));
}

void VariableState::Initialize(const torch::Tensor& value) {
  (void)*strategy;
  CheckType(dtype.value_or(value.scalar_type()));
  const std::lock_guard lock(mutex_);
  HideAcross();
  for (const auto& component : components) {
    const std::lock_guard write(component->write_mutex());
    component->Store(component->Copy(value, dtype.value_or(value.scalar_type())));
  }
}

void VariableState::Restore(const torch::Tensor& value) {
  (void)*strategy;
  const bool spread =
      kind == Variable::Kind::kSyncOnRead && aggregation == VariableAggregation::kSum;
  WriteAll(WriteKind::kAssign, [&](int index) {
    const torch::Tensor old = at(index).Snapshot();
    const torch::ScalarType type =
        old.defined() ? old.scalar_type() : dtype.value_or(value.scalar_type());
    const bool fits = c10::canCast(value.scalar_type(), type);
    return WriteArgument{.values = spread && fits ? Share(value.to(type), index) : value};
  });
}

}  // namespace muster::internal
