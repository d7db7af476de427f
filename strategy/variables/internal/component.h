// Where one component of a variable lives.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "device/place.h"
#include "strategy/base/torch.h"
#include "strategy/variables/internal/variable_write.h"

namespace muster {
class InitialValue;
struct VariableSpec;
}  // namespace muster

namespace muster::internal {

class ModuleHost;
class ModuleState;

// One copy of a variable's value. What the rules of variables need of it is here; where the value
// is kept, and how it gets there, is up to the kind of component.
//
// Threading: any thread, for all kinds.
class Component {
 public:
  Component(std::string name, device::Place place) : name_(std::move(name)), place_(place) {}
  virtual ~Component() = default;
  Component(const Component&) = delete;
  Component& operator=(const Component&) = delete;

  const std::string& name() const { return name_; }
  device::Place place() const { return place_; }

  // What is known of the value without reading it.
  struct Form {
    torch::ScalarType type = torch::kFloat;
    std::vector<std::int64_t> sizes = {};
  };
  // Absent: not initialised.
  virtual std::optional<Form> form() const;
  // The canonical name of the device that it lives on.
  virtual std::string device() const { return place_.Canonical(); }

  // The value as it is now; nobody changes it afterwards. Undefined: not initialised.
  virtual torch::Tensor Snapshot() const = 0;
  // The same into `kept`, which an earlier call has made and nobody else has: its memory is used
  // again where that saves a copy.
  virtual void SnapshotInto(torch::Tensor& kept) const { kept = Snapshot(); }
  // The value as an autograd leaf (requires_grad if `trainable` and of a type that has gradients),
  // the same one for this slot until the value is written. Slot r + 1 is replica r's, slot 0
  // everybody else's: readers of different slots do not share gradients. Undefined: not
  // initialised.
  virtual torch::Tensor Leaf(int slot, bool trainable) = 0;
  // A copy of these rows (int64, one dimension, each below the number of rows). The value is
  // initialised and has rows.
  virtual torch::Tensor Gather(const torch::Tensor& rows) const;
  // What `initial` makes of it.
  virtual torch::Tensor FirstValue(const InitialValue& initial);
  // true: its value is made elsewhere, and this is all that is to be said of it here.
  virtual bool Declare(const Form&) { return false; }
  // Makes its first value, of which `initial` has parts, part by part, none longer than it is
  // needed. false, and nothing is done: it has a value, or takes one as a whole.
  //   INVALID_ARGUMENT: a part is not what it must be; what the function throws.
  virtual bool TakeParts(const InitialValue& /*initial*/, torch::ScalarType /*type*/) {
    return false;
  }
  // A copy of `value`, as `type`, becomes the value. The first one says what the value looks like.
  virtual void Assign(const torch::Tensor& value, torch::ScalarType type) = 0;
  // One write. false, and nothing is done: there is no value yet. `variable`: for messages.
  //   INVALID_ARGUMENT: the argument does not fit the value; the text names the variable.
  virtual bool Apply(WriteKind kind, const std::string& variable,
                     const WriteArgument& argument) = 0;

  // Held from reading the old value to storing the new one.
  Mutex& write_mutex() MUSTER_RETURN_CAPABILITY(write_mutex_) { return write_mutex_; }

 private:
  const std::string name_;
  const device::Place place_;
  Mutex write_mutex_;
};

// Makes components that do not live in this process, or not in one place of it: a strategy's, see
// Strategy::component_maker().
// Threading: any thread.
class ComponentMaker {
 public:
  virtual ~ComponentMaker() = default;
  // Without a value. `place`: where tensors that are read from it are made.
  virtual std::unique_ptr<Component> Make(std::string name, device::Place place,
                                          const VariableSpec& spec) = 0;
  // false: the parameters of modules are ordinary components all the same.
  virtual bool keeps_modules() const { return true; }
  // For a module whose parameters' variables it keeps; the module keeps it.
  virtual std::unique_ptr<ModuleHost> HostModule(ModuleState& module) = 0;
};

// A value of its own, in this process. It is a snapshot: written once, then replaced, never
// changed; whoever has read it keeps what was read. Leaves are made of it when they are asked for.
class OwnComponent final : public Component {
 public:
  using Component::Component;

  torch::Tensor Snapshot() const override;
  torch::Tensor Leaf(int slot, bool trainable) override;
  void Assign(const torch::Tensor& value, torch::ScalarType type) override;
  bool Apply(WriteKind kind, const std::string& variable, const WriteArgument& argument) override;

 private:
  void Store(const torch::Tensor& fresh);
  // Writes rows in place if nobody else holds the value; else false. So a step that touches a few
  // rows of a large table does not copy the table.
  bool ScatterUnshared(WriteKind kind, const std::string& variable, const WriteArgument& argument);

  mutable Mutex mutex_;
  torch::Tensor data_ MUSTER_GUARDED_BY(mutex_);
  std::vector<torch::Tensor> leaves_ MUSTER_GUARDED_BY(mutex_);  // by slot
};

// A parameter or a buffer of a module, whose tensors must stay the same objects: it is written in
// place, the slots that own a tensor of it read that one, and all other readers get copies. Tensors
// on other cards than the value are copies of it, made anew after each write.
class AdoptedComponent final : public Component {
 public:
  // `data` becomes the value; adopted[slot], where defined, are tensors over the same storage, or
  // on another card with the same value, which the readers of these slots get.
  AdoptedComponent(std::string name, device::Place place, torch::Tensor data,
                   std::vector<torch::Tensor> adopted);

  // These, and all below: FAILED_PRECONDITION, where a tensor has another type than at its
  // adoption; the text names it.
  torch::Tensor Snapshot() const override;
  void SnapshotInto(torch::Tensor& kept) const override;
  torch::Tensor Leaf(int slot, bool trainable) override;
  void Assign(const torch::Tensor& value, torch::ScalarType type) override;
  bool Apply(WriteKind kind, const std::string& variable, const WriteArgument& argument) override;

  // Whether `value` has the memory of one of its tensors, which a write changes.
  bool Holds(const torch::Tensor& value) const;

  // true: since the last Settle() the value was written through one of its tensors, or the first of
  // them was given other memory; that tensor's value is the component's from here on.
  //   FAILED_PRECONDITION: its shape was changed; the text names it.
  bool TakeChanges();
  void Settle();
  // The first of its tensors has another value than the component until Hide() or a write.
  void Show(const torch::Tensor& value);
  void Hide();

  // Nobody else writes or copies the value while it lives: for an optimizer, which writes in place.
  // Several at a time: in the order in which the module has its parameters.
  class InPlace {
   public:
    explicit InPlace(AdoptedComponent& component);
    InPlace(InPlace&&) = default;
    ~InPlace();

   private:
    AdoptedComponent* component_;
    // Not MutexLock, which cannot be moved: an optimizer keeps as many as it has parameters.
    std::unique_lock<Mutex> write_;
    std::unique_lock<Mutex> value_;
  };

 private:
  void CheckTypes() const MUSTER_REQUIRES(mutex_);
  void Store(const torch::Tensor& value) MUSTER_REQUIRES(mutex_);
  // Counts what was written in place, through whichever of the adopted tensors.
  std::int64_t Version() const MUSTER_REQUIRES(mutex_);
  // Gives the value to the adopted tensors on other cards.
  void RefreshCopies() MUSTER_REQUIRES(mutex_);
  // The first tensor of the first copy that has one.
  const torch::Tensor& Front() const;
  // It lies neither over the value nor, on another card, over its copy, nor over what is shown.
  bool Moved() const MUSTER_REQUIRES(mutex_);
  void Note() MUSTER_REQUIRES(mutex_);

  mutable Mutex mutex_;
  torch::Tensor data_ MUSTER_GUARDED_BY(mutex_);
  std::vector<torch::Tensor> leaves_ MUSTER_GUARDED_BY(mutex_);  // by slot, where none is adopted
  const std::vector<torch::Tensor> adopted_;  // by slot; their values are guarded by mutex_
  std::vector<torch::Tensor> copies_;         // those of adopted_ on other cards
  const torch::ScalarType type_;
  // What the value was when the leaves were made.
  std::int64_t version_of_leaves_ MUSTER_GUARDED_BY(mutex_) = 0;
  torch::Tensor shown_ MUSTER_GUARDED_BY(mutex_);  // undefined: the value itself
  // Version() when it was noted, and that of the first tensor alone.
  std::int64_t settled_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::int64_t settled_front_ MUSTER_GUARDED_BY(mutex_) = 0;
};

// A copy of `value` in `kept`, whose memory is used again where it fits.
void CopyInto(const torch::Tensor& value, torch::Tensor& kept);

// A copy of `value` at `place`.
torch::Tensor CopyAt(device::Place place, const torch::Tensor& value, torch::ScalarType type);

}  // namespace muster::internal
