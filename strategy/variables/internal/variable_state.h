// What is behind the handles of a variable: its components, and the rules for writing them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "strategy/core/internal/strategy_ref.h"
#include "strategy/variables/variable.h"

namespace muster {
class ReplicaContext;
namespace internal {

// One copy of a variable's value, on one device.
//
// The value is a snapshot: written once, then replaced, never changed. Whoever has read it keeps
// what was read. Leaves are made of a snapshot when asked for, one for each reader that must not
// share gradients: slot r + 1 for replica r, slot 0 for everybody else.
//
// An adopted component is a parameter or a buffer of a module, whose tensors must stay the same
// objects: it is written in place, the replicas that own a tensor of it read that one, and all
// other readers get copies. Whoever writes to it in place (an optimizer) holds an InPlace
// meanwhile, so that nobody copies half a value. Tensors of replicas on other cards than the value
// are copies of it, made anew after each write.
//
// Threading: any thread.
class Component {
 public:
  Component(std::string name, int device) : name_(std::move(name)), device_(device) {}

  const std::string& name() const { return name_; }
  int device() const { return device_; }  // as Destinations numbers them

  // Undefined: not initialised.
  torch::Tensor Snapshot() const;
  torch::Tensor Leaf(int slot, bool trainable);
  // `fresh` is nobody else's, and lies on this component's device.
  void Store(const torch::Tensor& fresh);
  // Calls change(value), which writes rows in place, if nobody else holds the value; else false. So
  // a step that touches a few rows of a large table does not copy the table.
  bool ChangeUnshared(const std::function<void(const torch::Tensor&)>& change);
  // `data` becomes the value; leaves[slot], where defined, are tensors over the same storage, or on
  // another card with the same value, which the readers of these slots get. Once, before anybody
  // reads.
  void Adopt(torch::Tensor data, std::vector<torch::Tensor> leaves);
  // Adopted, and its type is another than at its adoption: FAILED_PRECONDITION naming it.
  void CheckAdopted() const;

  // Adopted. Was the value written through one of its tensors, or was the first of them given other
  // memory, since the last Settle()? Then that tensor's value is the component's from here on.
  //   FAILED_PRECONDITION: its type or its shape was changed; the text names it.
  bool TakeChanges();
  void Settle();
  // Adopted. The first of its tensors has another value than the component until Hide() or Store().
  void Show(const torch::Tensor& value);
  void Hide();

  // Nobody else writes or copies the value while it lives. Several at a time: in the order in which
  // the module has its parameters.
  class InPlace {
   public:
    explicit InPlace(Component& component);
    InPlace(InPlace&&) = default;
    ~InPlace();

   private:
    Component* component_;
    std::unique_lock<std::mutex> write_;
    std::unique_lock<std::mutex> value_;
  };
  // A copy on this component's device, of this type.
  torch::Tensor Copy(const torch::Tensor& value, torch::ScalarType dtype) const;

  // Held from reading the old value to storing the new one.
  std::mutex& write_mutex() { return write_mutex_; }

 private:
  // Counts what was written in place, through whichever of the adopted tensors; with mutex_ held.
  std::int64_t VersionOfAdopted() const;
  // Gives the value to the adopted tensors on other cards; with mutex_ held.
  void RefreshCopies();
  // With mutex_ held, as the next ones. The first tensor; of the first copy that has one.
  const torch::Tensor& Front() const;
  // It lies neither over the value nor, on another card, over its copy, nor over what is shown.
  bool Moved() const;
  void Note();

  const std::string name_;
  const int device_;
  std::mutex write_mutex_;
  mutable std::mutex mutex_;
  torch::Tensor data_;                  // guarded by mutex_
  std::vector<torch::Tensor> leaves_;   // guarded by mutex_
  std::vector<torch::Tensor> adopted_;  // guarded by mutex_; empty: not adopted
  std::vector<torch::Tensor> copies_;   // guarded by mutex_; those of adopted_ on other cards
  torch::ScalarType adopted_type_ = torch::kFloat;
  std::int64_t version_of_leaves_ = 0;  // guarded by mutex_; what the value was when they were made
  torch::Tensor shown_;                 // guarded by mutex_; undefined: the value itself
  std::int64_t settled_ = 0;            // guarded by mutex_; VersionOfAdopted() when it was noted
  std::int64_t settled_front_ = 0;      // guarded by mutex_; of the first tensor alone
};

enum class WriteKind : std::uint8_t {
  kAssign,
  kAssignAdd,
  kAssignSub,
  kScatterAdd,
  kScatterSub,
  kScatterMul,
  kScatterDiv,
  kScatterMin,
  kScatterMax,
  kScatterUpdate,
};
std::string_view name_of(WriteKind kind);
inline bool is_scatter(WriteKind kind) { return kind >= WriteKind::kScatterAdd; }

// What a write brings, for one component: a dense value, or rows.
struct WriteArgument {
  bool number = false;
  torch::Tensor values;
  torch::Tensor indices = {};  // scatter
};

// The component's value after a write. INVALID_ARGUMENT names the variable.
torch::Tensor Apply(WriteKind kind, const std::string& name, const torch::Tensor& old,
                    const WriteArgument& argument);
// The same in place.
void ScatterInto(WriteKind kind, const std::string& name, torch::Tensor into,
                 const WriteArgument& argument);
torch::Tensor ApplyScatter(WriteKind kind, const std::string& name, const torch::Tensor& old,
                           const WriteArgument& argument);
// One argument of what all replicas brought, for a variable that looks like `like`.
// INVALID_ARGUMENT: SUM of one number or object that all of them brought.
WriteArgument Aggregate(WriteKind kind, const std::string& name, VariableAggregation aggregation,
                        const std::vector<WriteArgument>& all, const torch::Tensor& like);

// Threading: any thread. The fields do not change after creation, but for the components' values.
class VariableState {
 public:
  using ArgumentOf = std::function<WriteArgument(int component)>;

  std::string name;
  StrategyRef strategy;
  Variable::Kind kind = Variable::Kind::kPlain;
  VariableSynchronization synchronization = VariableSynchronization::kOnWrite;
  VariableAggregation aggregation = VariableAggregation::kNone;
  bool trainable = true;
  std::optional<torch::ScalarType> dtype;  // as asked for; else the initial value's
  InitialValue initial_value = 0;
  std::vector<std::unique_ptr<Component>> components;
  // Its components are the tensors of several copies of a module.
  bool of_copies = false;

  int size() const { return static_cast<int>(components.size()); }
  Component& at(int index) { return *components[static_cast<std::size_t>(index)]; }

  // The component that a read or write of the whole variable means here; -1: no single one.
  int OwnComponent() const;
  // This strategy's replica context, when this is one.
  ReplicaContext* Replica() const;

  torch::Tensor Read();  // of the whole variable, here
  torch::Tensor ReadComponent(int index);
  torch::Tensor ReadAcross();  // aggregated
  torch::Tensor Primary();     // a snapshot; FAILED_PRECONDITION: not initialised
  void Write(WriteKind kind, int component, const ArgumentOf& argument);
  // All components at once: nobody else writes between.
  void WriteAll(WriteKind kind, const ArgumentOf& argument);
  void WriteOne(WriteKind kind, int index, const WriteArgument& argument);
  void Initialize(const torch::Tensor& value);
  // What goes into a checkpoint (one tensor, table 2.9), and back.
  torch::Tensor ToSave();
  void Restore(const torch::Tensor& value);

  // Of a module with several copies; not while a run() goes on.
  // What was done to the tensor of the first copy becomes the value of all. Where all copies of an
  // ON_READ variable were changed, each keeps its own.
  //   FAILED_PRECONDITION: a mirrored value was changed on another copy than the first alone.
  void TakeChanges();
  // The first copy's tensor has the aggregated value, until HideAcross().
  void ShowAcross();
  void HideAcross();
  // The values are as they should be.
  void Settle();
  // TakeChanges(), unless a run() goes on. FAILED_PRECONDITION: the strategy is destroyed.
  void Sync();
  // INVALID_ARGUMENT: no variable of these modes can have this type.
  void CheckType(torch::ScalarType type) const;

 private:
  void WriteFromReplica(WriteKind kind, ReplicaContext& replica, const ArgumentOf& argument);
  void WriteAcross(WriteKind kind, const ArgumentOf& argument);
  // Component `index`'s part of a value that is the sum of all; integers lose nothing.
  torch::Tensor Share(const torch::Tensor& total, int index) const;
  // With the write_mutex of the component held.
  void Store(WriteKind kind, int index, const WriteArgument& argument);

  // One write of all components at a time; taken before theirs. A write may read the variable.
  std::recursive_mutex mutex_;
  // The first tensor has the aggregated value, whether it is another than its own or not.
  std::atomic<bool> shows_across_ = false;
};

// Makes a variable under `strategy`, without asking creators. Cross-replica context.
Variable MakeVariable(Strategy& strategy, const VariableSpec& spec);

}  // namespace internal
}  // namespace muster
