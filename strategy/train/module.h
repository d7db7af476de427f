// A torch::nn::Module with a copy for each replica.
//
//   auto scope = strategy.scope();
//   auto net = strategy.distribute(Net());  // a ModuleHolder, or a shared_ptr
//   auto optimizer = strategy.optimizer<torch::optim::Adam>(net, 1e-3);
//   strategy.run([&](const Batch& batch) {
//     optimizer.zero_grad();
//     auto losses = cross_entropy(net->forward(batch.x), batch.y);  // this replica's copy
//     compute_average_loss(losses, global_batch).backward();
//     optimizer.step();  // sums the gradients over replicas
//   }, batches);
//   net->eval();  // reaches all copies
//
// `net->` is the replica's own copy inside run(), else the first, which is the module that was
// given. Each copy's parameters are components of variables: ON_WRITE with aggregation MEAN;
// floating buffers are ON_READ MEAN, integer ones ON_READ ONLY_FIRST_REPLICA. In a replica
// variable.value() is its copy's tensor. Mirrored copies lie in the memory of their devices; under
// central storage the copies' parameters are views of one value on the parameter device; replicas
// on other cards have copies of it, made anew when it was written (not when a copy was). One
// parameter registered under several names (shared submodules included) stays one in all copies,
// and so does a view of it of the same shape. With several copies, parameters and buffers that
// overlap in memory in any other way (a transposed view of a weight) are refused
// (INVALID_ARGUMENT); those that only lie side by side in one storage are not.
//
// Under a ParameterServerStrategy parameters are variables on the servers, and buffers belong to
// the copy: docs/strategies/parameter_server.md. `net->` is the closure's own copy, whose
// parameters have the values as the closure sees them; outside closures, those of now.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/core/strategy.h"
#include "strategy/variables/variable.h"

namespace muster {

namespace internal {
class ModuleState;
class OutsideUse;

// Lives for one expression: `net->eval()`.
template <class M>
class ModuleUse {
 public:
  ModuleUse(M* module, std::shared_ptr<OutsideUse> outside)
      : module_(module), outside_(std::move(outside)) {}
  M* operator->() const { return module_; }

 private:
  M* module_;
  std::shared_ptr<OutsideUse> outside_;
};

std::shared_ptr<ModuleState> DistributeModule(Strategy& strategy,
                                              const std::shared_ptr<torch::nn::Module>& module);
}  // namespace internal

// The part that does not depend on the module's type. A handle: copies are the same module.
//
// Errors of what uses the module: FAILED_PRECONDITION when the type of one of its tensors was
// changed after distribute() (the text names it), or inside another strategy's scope.
// Threading: a copy belongs to its replica's thread; outside run() to one thread at a time.
// Lifetime: the strategy outlives it.
class DistributedModuleBase {
 public:
  const std::string& name() const;
  Strategy& strategy() const;
  int size() const;  // number of copies
  // Named as in the module ("fc.weight"); one for each tensor.
  const std::vector<Variable>& parameters() const;
  const std::vector<Variable>& buffers() const;
  // A parameter or a buffer. NOT_FOUND.
  Variable variable(const std::string& name) const;

  // Inside run() the replica's copy, else all copies.
  void train(bool on = true) const;
  void eval() const { train(false); }
  // Drops gradients (as libtorch 2 does by default, whichever libtorch this is): a parameter that
  // then gets none is left alone by the optimizer.
  void zero_grad() const;

  // Parameters and buffers of all copies, from a file of torch::save(), or of Python's
  // torch.save(module.state_dict(), path) or torch.jit.save(), by their names in the module;
  // outside run(). What else the file holds is passed over.
  //   NOT_FOUND: no such file.   INVALID_ARGUMENT: no archive, or it lacks a tensor of the module,
  //   or has one of another shape; then nothing is changed.
  void load(const std::string& path) const;
  // As torch::save() does: buffers as they are read outside run(). In one step: what was at `path`
  // stays until all of the new file is on the disk.
  //   UNKNOWN: the file cannot be written.
  void save(const std::string& path) const;

  // For the code of strategy/.
  const std::shared_ptr<internal::ModuleState>& state() const { return state_; }

 protected:
  explicit DistributedModuleBase(std::shared_ptr<internal::ModuleState> state)
      : state_(std::move(state)) {}
  // The copy that is meant here.
  int here() const;
  const std::shared_ptr<torch::nn::Module>& module(int copy) const;
  // A copy where its strategy keeps the values elsewhere; else null.
  torch::nn::Module* hosted(int copy) const;
  [[noreturn]] void raise_other_type() const;
  // Null: nothing needs to be spread.
  std::shared_ptr<internal::OutsideUse> outside() const;

 private:
  std::shared_ptr<internal::ModuleState> state_;
};

template <class M>
class DistributedModule : public DistributedModuleBase {
 public:
  // INVALID_ARGUMENT: clone() made another type (it is inherited from a class that M derives from).
  explicit DistributedModule(std::shared_ptr<internal::ModuleState> state)
      : DistributedModuleBase(std::move(state)) {
    std::vector<std::shared_ptr<M>> copies;
    for (int r = 0; r < size(); ++r) {
      copies.push_back(std::dynamic_pointer_cast<M>(module(r)));
      if (copies.back() == nullptr) raise_other_type();
    }
    copies_ = std::make_shared<const std::vector<std::shared_ptr<M>>>(std::move(copies));
  }

  internal::ModuleUse<M> operator->() const {
    const int copy = here();
    if (auto* const closures = hosted(copy)) return {dynamic_cast<M*>(closures), outside()};
    return {(*copies_)[static_cast<std::size_t>(copy)].get(), outside()};
  }
  // forward() of the copy that is meant here.
  template <class... Args>
  auto operator()(Args&&... args) const {
    return (*this)->forward(std::forward<Args>(args)...);
  }
  // Replica r's; not a closure's. OUT_OF_RANGE.
  std::shared_ptr<M> copy(int replica) const {
    (void)module(replica);
    return (*copies_)[static_cast<std::size_t>(replica)];
  }

 private:
  std::shared_ptr<const std::vector<std::shared_ptr<M>>> copies_;
};

template <class M>
  requires std::is_base_of_v<torch::nn::Module, M>
DistributedModule<M> Strategy::distribute(std::shared_ptr<M> module) {
  return DistributedModule<M>(internal::DistributeModule(*this, module));
}
template <class M>
DistributedModule<M> Strategy::distribute(const torch::nn::ModuleHolder<M>& module) {
  return distribute(module.is_empty() ? std::shared_ptr<M>() : module.ptr());
}

}  // namespace muster
