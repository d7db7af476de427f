// What is behind the handles of a variable: its components, and the rules for writing them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "strategy/core/internal/strategy_ref.h"
#include "strategy/variables/internal/component.h"
#include "strategy/variables/internal/variable_policy.h"
#include "strategy/variables/variable.h"

namespace muster {
class ReplicaContext;
namespace internal {

// The components and the locks of a variable, and where its reader or writer is; what a read or a
// write means there, the policy says.
//
// Threading: any thread. The fields do not change after creation, but for the components' values.
class VariableState {
 public:
  std::string name;
  StrategyRef strategy;
  std::unique_ptr<const VariablePolicy> policy;
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

  // Component `index` becomes a tensor of a module (see AdoptedComponent). Once for each, before
  // anybody else has the variable.
  void Adopt(int index, torch::Tensor data, std::vector<torch::Tensor> adopted);
  AdoptedComponent& adopted(int index) const { return *adopted_[static_cast<std::size_t>(index)]; }

  // The component that a read or write of the whole variable means here; -1: no single one.
  int OwnComponent() const { return policy->Own(*this); }
  // This strategy's replica context, when this is one.
  ReplicaContext* Replica() const;

  torch::Tensor Read();  // of the whole variable, here
  torch::Tensor ReadComponent(int index);
  // For a replica of another strategy on the same devices: a snapshot of the component that lies
  // where this thread computes, else of the first. All are equal, or may be used as if they were.
  torch::Tensor ReadNearest();
  // Aggregated, as across replicas (of several processes: an ON_READ variable's is a call that all
  // of them make); also what goes into a checkpoint (one tensor, table 2.9).
  torch::Tensor ReadAcross() { return policy->ReadAcross(*this); }
  // The first component: a snapshot, and what it looks like, which costs no read.
  //   FAILED_PRECONDITION: not initialised.
  torch::Tensor Primary();
  Component::Form PrimaryForm();
  void Write(WriteKind kind, int component, const ArgumentOf& argument);
  // All components at once: nobody else writes between.
  void WriteAll(WriteKind kind, const ArgumentOf& argument);
  void WriteOne(WriteKind kind, int index, const WriteArgument& argument);
  // The parts of `initial` become the value, one after another; where it is made elsewhere, none is
  // asked for. false, and nothing is done: its whole value goes to Initialize().
  bool InitializeInParts(const InitialValue& initial);
  // `own` becomes the value, or of several processes the first one's.
  void Initialize(const torch::Tensor& own);
  // What ReadAcross() gave becomes the value.
  void Restore(const torch::Tensor& value);

  // The next ones are for a module with several copies, while no run() goes on.
  // What was done to the tensor of the first copy becomes the value of all. Where all copies of an
  // ON_READ variable were changed, each keeps its own.
  //   FAILED_PRECONDITION: a mirrored value was changed on another copy than the first alone.
  void TakeChanges();
  // The first copy's tensor has the aggregated value of this process's, until HideAcross().
  void ShowAcross();
  void HideAcross();
  // The values are as they should be.
  void Settle();
  // TakeChanges(), unless a run() goes on. FAILED_PRECONDITION: the strategy is destroyed.
  void Sync();

 private:
  // Those of `components` that were adopted: all, or none.
  std::vector<AdoptedComponent*> adopted_;
  // One write of all components at a time; taken before theirs. Two variables' in the order of
  // their addresses. What is shown across replicas is read under it.
  RecursiveMutex mutex_;
  // The first tensor has the aggregated value, whether it is another than its own or not.
  std::atomic<bool> shows_across_ = false;
};

// What the processes of a strategy call it when they settle a variable's first value.
inline std::string CallOfFirstValue(const std::string& name) {
  return "initial value of variable " + name;
}

// Makes a variable under `strategy`, without asking creators. Cross-replica context.
//   INVALID_ARGUMENT, beside those of the specification: within NoVariables.
Variable MakeVariable(Strategy& strategy, const VariableSpec& spec);

// While it lives its thread and its replicas' make no variable: a creator is asked on threads of
// replicas, too, but of no module's variables. `where` is the error's subject: "a function that
// ...".
class NoVariables {
 public:
  explicit NoVariables(const char* where);
  ~NoVariables();
  NoVariables(const NoVariables&) = delete;
  NoVariables& operator=(const NoVariables&) = delete;

 private:
  const char* const before_;
  const VariableCreatorScope creators_;
};

}  // namespace internal
}  // namespace muster
