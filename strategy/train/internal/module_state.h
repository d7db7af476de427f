// What is behind a distributed module: its copies, and the variables that their tensors belong to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/place.h"
#include "strategy/base/torch.h"
#include "strategy/core/internal/runs.h"
#include "strategy/core/internal/strategy_ref.h"
#include "strategy/train/optimizer.h"
#include "strategy/variables/internal/variable_state.h"
#include "strategy/variables/variable.h"

namespace muster {
class ReplicaContext;
class Strategy;

namespace internal {

class ModuleState;

// Copies of a module, one for each replica.
struct ModuleCopies {
  std::vector<std::shared_ptr<torch::nn::Module>> copies;
  // The tensors of each copy: see ModuleState.
  std::vector<std::vector<torch::Tensor>> leaves;
  std::vector<std::vector<torch::nn::Module*>> flat;  // its submodules, in one order
};

// Who keeps the values of a module's parameters, where its copies do not. Copies are what one
// computes with: they get the values before they are used.
// Threading: any thread; a copy belongs to its replica's.
class ModuleHost {
 public:
  virtual ~ModuleHost() = default;
  // The copies that this thread works with: its closure's own, else those of the ModuleState.
  virtual const ModuleCopies& Used() = 0;
  // Gives the parameters of one of them their values as they are here.
  virtual void Fill(int copy) = 0;
  // Sees to an optimizer for them.
  virtual std::shared_ptr<OptimizerState> OptimizerFor(const std::shared_ptr<ModuleState>& module,
                                                       const MakeOptimizer& make,
                                                       const OptimizerOptions& how) = 0;
};

// Invariant: variable i of `parameters` has the tensor leaves[r][i] of copy r, variable j of
// `buffers` leaves[r][parameters.size() + j]. A parameter under several names is one variable.
// What is done to the first copy's tensors outside run(), in place or by giving them other memory,
// is taken over by all copies at the next use of any of them. While the first copy is used outside
// run(), its ON_READ MEAN buffers show the mean over the copies.
//
// Threading: nothing changes after creation but the tensors' values; a copy belongs to its replica.
// Lifetime: the strategy outlives it; else FAILED_PRECONDITION.
class ModuleState final : public BetweenRuns,
                          public ModuleCopies,
                          public std::enable_shared_from_this<ModuleState> {
 public:
  StrategyRef strategy;
  std::string name;
  std::vector<Variable> parameters;
  std::vector<Variable> buffers;
  std::vector<torch::ScalarType> types;  // of the tensors of leaves[r]
  // What optimizers write: the parameters of leaves[r]; of central storage tensors over the one
  // value.
  std::vector<std::vector<torch::Tensor>> masters;
  // Null: the copies keep the values of the parameters.
  std::unique_ptr<ModuleHost> host;

  int size() const { return static_cast<int>(copies.size()); }
  // One value for several replicas.
  bool central() const { return masters.size() < copies.size(); }
  device::Place parameter_device(int master) const;

  // This strategy's replica context, when this is one. FAILED_PRECONDITION: another strategy's.
  ReplicaContext* Replica() const;
  // The copy that is meant here: the replica's own, else the first. FAILED_PRECONDITION: the type
  // of one of its tensors was changed.
  int Here() const;
  // The copies that are meant here. FAILED_PRECONDITION: the strategy is destroyed.
  const ModuleCopies& Used() const;
  void Check(int copy) const;
  // As many again, with values of their own. INVALID_ARGUMENT: they have other tensors.
  std::unique_ptr<ModuleCopies> NewCopies() const;

  void Train(bool on) const;
  void ZeroGrad() const;

  // For a module of several copies, outside run(); else they do nothing. FAILED_PRECONDITION: a
  // copy that is not the first was changed alone, or a tensor has another shape or type now; the
  // text names it.
  void Sync() const;
  void ShowMeans() const;
  void Load(const std::string& path) const;
  void Save(const std::string& path) const;
  // Around run(): as Sync(), and copies show their own buffers again; what they are afterwards is
  // as it should be.
  void BeginRun() override;
  void EndRun() override;

 private:
  // Calls it on each parameter and buffer.
  void Each(void (VariableState::*call)()) const;
};

// INVALID_ARGUMENT: it cannot be copied; the text names it.
std::shared_ptr<torch::nn::Module> CopyOf(const torch::nn::Module& module);

// INVALID_ARGUMENT: no module, or one that cannot be copied; the text names it. Or it is to have
// copies, and two of its tensors lie over the same memory in different ways; the text names them.
// UNIMPLEMENTED: two of its parameters share memory, and their values are kept elsewhere.
std::shared_ptr<ModuleState> DistributeModule(Strategy& strategy,
                                              const std::shared_ptr<torch::nn::Module>& module);

// While the first copy is used outside run(): what the user does to it by train(), eval() and
// zero_grad() is done to the other copies in the end.
class OutsideUse {
 public:
  explicit OutsideUse(std::shared_ptr<ModuleState> module);
  ~OutsideUse();
  OutsideUse(const OutsideUse&) = delete;
  OutsideUse& operator=(const OutsideUse&) = delete;

 private:
  void SpreadModes() const;
  void SpreadZeros() const;

  const std::shared_ptr<ModuleState> module_;
  // The versions of the first copy's gradients; -1: there was none.
  std::vector<std::int64_t> versions_;
};

}  // namespace internal
}  // namespace muster
