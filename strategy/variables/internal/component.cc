#include "strategy/variables/internal/component.h"

#include <algorithm>

#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/values/internal/copies.h"
#include "strategy/variables/internal/ordinary.h"
#include "strategy/variables/variable.h"

namespace muster::internal {
namespace {

std::int64_t VersionOf(const torch::Tensor& tensor) {
  const bool counts = tensor.defined() && !tensor.is_inference();
  return counts ? static_cast<std::int64_t>(tensor._version()) : 0;
}

bool HasGradients(torch::ScalarType type) {
  return torch::isFloatingType(type) || torch::isComplexType(type);
}

// Who reads a slot of a value: a replica computes with what lies on its own card, everybody else
// with what is there.
struct Reader {
  Reader(int slot, device::Place home, const torch::Tensor& data)
      : device(device::TorchDevice(slot > 0 ? device::PlaceScope::Current() : home)),
        away(!device::SameDevice(device, data.device())),
        place(away ? device::PlaceScope::Current() : home) {}
  const torch::Device device;
  const bool away;            // the value is on another device
  const device::Place place;  // where a tensor for this reader is made
};

// The leaf of `slot`; what make() makes becomes it, where there is none on the reader's device: a
// plain variable is read by replicas of several strategies.
template <class Make>
torch::Tensor LeafOf(std::vector<torch::Tensor>& leaves, std::size_t slot, const Reader& reader,
                     bool gradients, const Make& make) {
  if (leaves.size() <= slot) leaves.resize(slot + 1);
  torch::Tensor& leaf = leaves[slot];
  if (!leaf.defined() || !device::SameDevice(leaf.device(), reader.device)) {
    const Ordinary ordinary(reader.place);
    leaf = make().variable_data();
    leaf.set_requires_grad(gradients);
  }
  return leaf;
}

// What libtorch says of an argument that does not fit.
[[noreturn]] void RaiseUnfit(WriteKind kind, const std::string& variable, const c10::Error& error) {
  raise(InvalidArgument("{} of variable {}: {}", name_of(kind), variable,
                        error.what_without_backtrace()));
}

}  // namespace

void CopyInto(const torch::Tensor& value, torch::Tensor& kept) {
  const bool fits = kept.defined() && kept.scalar_type() == value.scalar_type() &&
                    kept.device() == value.device() && kept.sizes() == value.sizes();
  if (fits) {
    kept.copy_(value);
  } else {
    kept = value.clone();
  }
}

torch::Tensor CopyAt(device::Place place, const torch::Tensor& value, torch::ScalarType type) {
  const Ordinary ordinary(place);
  const auto options = torch::dtype(type).device(device::TorchDevice(place));
  return device::Placed(torch::empty(value.sizes(), options).copy_(value), place);
}

std::optional<Component::Form> Component::form() const {
  const torch::Tensor value = Snapshot();
  if (!value.defined()) return std::nullopt;
  return Form{.type = value.scalar_type(), .sizes = value.sizes().vec()};
}

torch::Tensor Component::FirstValue(const InitialValue& initial) { return initial(); }

torch::Tensor Component::Gather(const torch::Tensor& rows) const {
  const Ordinary ordinary(place());
  const torch::Tensor value = Snapshot();
  return value.index_select(0, rows.to(value.device()));
}

torch::Tensor OwnComponent::Snapshot() const {
  const MutexLock lock(mutex_);
  return data_;
}

torch::Tensor OwnComponent::Leaf(int slot, bool trainable) {
  const MutexLock lock(mutex_);
  if (!data_.defined()) return {};
  const torch::Tensor& data = data_;
  const Reader reader(slot, place(), data);
  return LeafOf(leaves_, static_cast<std::size_t>(slot), reader,
                trainable && HasGradients(data.scalar_type()),
                [&reader, data = data_] { return reader.away ? here(data) : data; });
}

void OwnComponent::Assign(const torch::Tensor& value, torch::ScalarType type) {
  Store(CopyAt(place(), value, type));
}

bool OwnComponent::Apply(WriteKind kind, const std::string& variable,
                         const WriteArgument& argument) {
  try {
    if (is_scatter(kind) && ScatterUnshared(kind, variable, argument)) return true;
    const torch::Tensor old = Snapshot();
    if (!old.defined()) return false;
    const Ordinary ordinary(place());
    Store(device::Placed(Written(kind, variable, old, argument), place()));
  } catch (const c10::Error& error) {
    RaiseUnfit(kind, variable, error);
  }
  return true;
}

void OwnComponent::Store(const torch::Tensor& fresh) {
  const MutexLock lock(mutex_);
  leaves_.clear();
  data_ = fresh;
}

bool OwnComponent::ScatterUnshared(WriteKind kind, const std::string& variable,
                                   const WriteArgument& argument) {
  const MutexLock lock(mutex_);
  if (!data_.defined() || data_.use_count() != 1) return false;
  std::size_t holders = 1;
  for (const torch::Tensor& leaf : leaves_) {
    if (!leaf.defined()) continue;
    if (leaf.use_count() != 1) return false;
    ++holders;
  }
  // A view, or what a backward pass has kept.
  if (data_.storage().use_count() != holders) return false;
  const Ordinary ordinary(place());
  ScatterInto(kind, variable, data_, argument);
  leaves_.clear();  // not where the write was refused: the gradients that they have stay
  return true;
}

AdoptedComponent::AdoptedComponent(std::string name, device::Place place, torch::Tensor data,
                                   std::vector<torch::Tensor> adopted)
    : Component(std::move(name), place),
      data_(std::move(data)),
      adopted_(std::move(adopted)),
      type_(data_.scalar_type()) {
  for (const torch::Tensor& leaf : adopted_) {
    if (leaf.defined() && !device::SameDevice(leaf.device(), data_.device())) {
      copies_.push_back(leaf);
    }
  }
  Note();
}

torch::Tensor AdoptedComponent::Snapshot() const {
  const MutexLock lock(mutex_);
  CheckTypes();
  const Ordinary ordinary(place());
  return device::Placed(data_.clone(), place());
}

void AdoptedComponent::SnapshotInto(torch::Tensor& kept) const {
  const MutexLock lock(mutex_);
  CheckTypes();
  const Ordinary ordinary(place());
  CopyInto(data_, kept);
  kept = device::Placed(std::move(kept), place());
}

bool AdoptedComponent::Holds(const torch::Tensor& value) const {
  return value.defined() && value.layout() == torch::kStrided &&
         std::ranges::any_of(adopted_, [&](const torch::Tensor& one) {
           return one.defined() && one.is_alias_of(value);
         });
}

torch::Tensor AdoptedComponent::Leaf(int slot, bool trainable) {
  const MutexLock lock(mutex_);
  const auto index = static_cast<std::size_t>(slot);
  CheckTypes();
  if (index < adopted_.size() && adopted_[index].defined()) return adopted_[index];
  const torch::Tensor& data = data_;
  const Reader reader(slot, place(), data);
  const auto copy = [&reader, data = data_] { return reader.away ? here(data) : data.clone(); };
  const bool gradients = trainable && HasGradients(data.scalar_type());
  // Buffers are written by their module, which tells nobody.
  if (!gradients) {
    const Ordinary ordinary(reader.place);
    return copy();
  }
  // Parameters, too, may be written by whoever has the module: an initialiser.
  if (const std::int64_t version = Version(); version != version_of_leaves_) {
    leaves_.clear();
    version_of_leaves_ = version;
  }
  return LeafOf(leaves_, index, reader, gradients, copy);
}

void AdoptedComponent::Assign(const torch::Tensor& value, torch::ScalarType type) {
  const torch::Tensor fresh = CopyAt(place(), value, type);
  const MutexLock lock(mutex_);
  Store(fresh);
}

bool AdoptedComponent::Apply(WriteKind kind, const std::string& variable,
                             const WriteArgument& argument) {
  const torch::Tensor old = Snapshot();
  const Ordinary ordinary(place());
  try {
    const torch::Tensor fresh = Written(kind, variable, old, argument);
    const MutexLock lock(mutex_);
    Store(fresh);
  } catch (const c10::Error& error) {
    RaiseUnfit(kind, variable, error);
  }
  return true;
}

void AdoptedComponent::Store(const torch::Tensor& value) {
  leaves_.clear();
  const Ordinary ordinary(place());
  data_.copy_(value);
  if (shown_.defined() || Moved()) Front().set_data(data_);
  shown_ = torch::Tensor();
  RefreshCopies();
  Note();
}

const torch::Tensor& AdoptedComponent::Front() const {
  return *std::find_if(adopted_.begin(), adopted_.end(),
                       [](const torch::Tensor& leaf) { return leaf.defined(); });
}

bool AdoptedComponent::Moved() const {
  const torch::Tensor& front = Front();
  return device::SameDevice(front.device(), data_.device()) &&
         !front.is_alias_of(shown_.defined() ? shown_ : data_);
}

void AdoptedComponent::Note() {
  settled_ = Version();
  settled_front_ = VersionOf(Front());
}

// The first tensor may lie over the value (then there is nothing to take over but for the copies),
// over memory that the user gave it, over what is shown, or on another card: in the last three its
// value is copied, where it was written.
bool AdoptedComponent::TakeChanges() {
  const MutexLock lock(mutex_);
  const torch::Tensor& front = Front();
  const bool moved = Moved();
  if (!moved && Version() == settled_) return false;
  CheckTypes();
  if (!front.sizes().equals(data_.sizes())) {
    raise(FailedPrecondition(
        "{} has shape {} now, but had {} when its module was distributed: a module keeps its "
        "shapes after distribute()",
        name(), ShapeText(front), ShapeText(data_)));
  }
  const Ordinary ordinary(place());
  const bool near = device::SameDevice(front.device(), data_.device());
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

void AdoptedComponent::Settle() {
  const MutexLock lock(mutex_);
  Note();
}

void AdoptedComponent::Show(const torch::Tensor& value) {
  const MutexLock lock(mutex_);
  const Ordinary ordinary(place());
  shown_ = value;
  Front().set_data(shown_);
}

void AdoptedComponent::Hide() {
  const MutexLock lock(mutex_);
  if (!shown_.defined()) return;
  const Ordinary ordinary(place());
  Front().set_data(data_);
  shown_ = torch::Tensor();
}

void AdoptedComponent::RefreshCopies() {
  for (const torch::Tensor& copy : copies_) copy.copy_(data_);
}

std::int64_t AdoptedComponent::Version() const {
  std::int64_t version = VersionOf(data_);
  for (const torch::Tensor& leaf : adopted_) version += VersionOf(leaf);
  return version;
}

void AdoptedComponent::CheckTypes() const {
  const auto check = [this](const torch::Tensor& tensor) {
    if (tensor.scalar_type() == type_) return;
    raise(FailedPrecondition(
        "{} is {} now, but was {} when its module was distributed: change a module's type "
        "(module->to(dtype)) before distribute()",
        name(), torch::toString(tensor.scalar_type()), torch::toString(type_)));
  };
  check(data_);
  for (const torch::Tensor& leaf : adopted_) {
    if (leaf.defined()) check(leaf);
  }
}

AdoptedComponent::InPlace::InPlace(AdoptedComponent& component)
    : component_(&component), write_(component.write_mutex()), value_(component.mutex_) {
  component.leaves_.clear();
}

AdoptedComponent::InPlace::~InPlace() {
  if (!value_.owns_lock() || component_->copies_.empty()) return;  // moved from, or nothing to do
  try {
    const Ordinary ordinary(component_->place());
    component_->RefreshCopies();
  } catch (const c10::Error&) {  // a destructor: a card that fails fails again at its next use
  }
}

}  // namespace muster::internal
