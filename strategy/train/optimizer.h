// torch::optim optimizers over the copies of a distributed module.
//
// step() inside run() sums the gradients over replicas and applies the same update to each copy, so
// mirrored copies stay equal bit for bit. Under central storage the optimizer's state and its
// update are there once, on the parameter device. With one replica, and under no strategy, it is
// the plain optimizer. .grad() of the copies is not changed: gradients gather over several backward
// passes as they do in one process. A gradient that only some replicas have (the others had no
// examples) counts as 0 there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/core/strategy.h"
#include "strategy/train/module.h"

namespace muster {

struct OptimizerOptions {
  // false: the gradients are equal on all replicas already (reduce_gradients(), all_reduce()).
  bool all_reduce_gradients = true;
  // Where replicas lie in several processes: begins the sums of gradients while backward() goes on,
  // the last layers' first; step() and reduce_gradients() wait for them. Worth it with one
  // backward() for each step, and where the network is what a step waits for. Between backward()
  // and step() the replicas make no other call together. A gradient that is changed in between is
  // summed again. Sums are those of without it but for the order in which they are added up. Under
  // other strategies, on GPUs, and in run_elastic() it changes nothing. Costs a copy of the
  // gradients in memory, the same on all workers.
  bool reduce_in_backward = false;
  // How many bytes of gradients begin together, or a few more. INVALID_ARGUMENT: less than 1.
  std::int64_t bytes_per_pack = std::int64_t{4} << 20;
};

// Parameters with options of their own, by name: of a parameter ("fc.bias"), or of a part of the
// module, for all parameters in it ("fc").
template <class Options>
struct ParameterGroup {
  std::vector<std::string> parameters;
  Options options;
};

namespace internal {
class OptimizerState;
class SavedState;
// Makes the optimizer of these parameters, which have these names.
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<torch::Tensor>, const std::vector<std::string>&)>;
// The places in `names` of each group's parameters; in the end, those of no group.
//   INVALID_ARGUMENT: a name of no parameter that is trained, or one that comes in two groups.
std::vector<std::vector<std::size_t>> group_parameters(
    const std::vector<std::string>& names, const std::vector<std::vector<std::string>>& groups);
// INVALID_ARGUMENT: what libtorch has against the options of this group.
[[noreturn]] void raise_group(std::size_t group, const c10::Error& error);
// libtorch looks at the options of no group, but at those that an optimizer begins with.
template <class Torch, class Options>
void check_groups(const std::vector<ParameterGroup<Options>>& groups) {
  const std::vector<torch::optim::OptimizerParamGroup> nothing{
      torch::optim::OptimizerParamGroup(std::vector<torch::Tensor>())};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    try {
      const Torch checked(nothing, groups[g].options);
    } catch (const c10::Error& error) {
      raise_group(g, error);
    }
  }
}
std::shared_ptr<OptimizerState> DistributeOptimizer(Strategy& strategy,
                                                    std::shared_ptr<ModuleState> module,
                                                    const MakeOptimizer& make,
                                                    const OptimizerOptions& how);
}  // namespace internal

// The part that does not depend on the optimizer's type. A handle: copies are the same optimizer.
//
// Errors of all calls: FAILED_PRECONDITION inside another strategy's scope, and of step() when a
// tensor of the module changed its type.
// Threading: inside run() from all replicas together; outside from one thread at a time.
class DistributedOptimizerBase {
 public:
  using Closure = std::function<torch::Tensor()>;

  // Inside run(): all replicas together. Outside: does it for the gradients that all copies have.
  //   INVALID_ARGUMENT: gradients that this optimizer cannot work with (sparse ones: Adam).
  void step() const;
  // As step(), with gradients that `closure` makes; it may be called several times (LBFGS).
  // Returns its loss, summed over replicas as the gradients are.
  //   FAILED_PRECONDITION: outside run() of several replicas.
  //   UNIMPLEMENTED: central storage of several replicas, for optimizers that call it several
  //   times.
  torch::Tensor step(const Closure& closure) const;
  // Puts the sum over replicas into .grad() of each copy, to change it (clipping) before a step()
  // with all_reduce_gradients = false. FAILED_PRECONDITION: outside run() of several replicas.
  void reduce_gradients() const;

  // The module's: drops the gradients of the replica's copy inside run(), else of all copies.
  void zero_grad() const;

  // The rate of all parameters; where there are groups, the first group's is read and that of all
  // is set. Setting it inside run() is for all replicas together.
  //   UNIMPLEMENTED: an optimizer without a learning rate.  INVALID_ARGUMENT: a rate below 0, no
  //   number, or more than a float32 can say.
  double learning_rate() const;
  void set_learning_rate(double rate) const;

  // What the optimizer remembers, by the names of checkpoints: "fc.weight/slot/exp_avg". The count
  // of steps is "<parameter>/slot/step" (int64). Empty before the first step.
  //   UNIMPLEMENTED: other than SGD, Adam, AdamW, Adagrad and RMSprop.
  std::map<std::string, torch::Tensor> state() const;
  // The reverse; what is missing is as before the first step.
  //   INVALID_ARGUMENT: a name or a shape that does not belong here; then nothing is changed.
  void load_state(const std::map<std::string, torch::Tensor>& state) const;

  const std::string& name() const;

  // For the code of strategy/.
  std::shared_ptr<const internal::SavedState> saved_state() const;

 protected:
  explicit DistributedOptimizerBase(std::shared_ptr<internal::OptimizerState> state)
      : state_(std::move(state)) {}
  // Replica r's; under central storage the one there is.
  torch::optim::Optimizer& instance(int replica) const;

 private:
  std::shared_ptr<internal::OptimizerState> state_;
};

template <class Torch>
class DistributedOptimizer : public DistributedOptimizerBase {
 public:
  explicit DistributedOptimizer(std::shared_ptr<internal::OptimizerState> state)
      : DistributedOptimizerBase(std::move(state)) {}
  // libtorch's own object: the options of replica r (change them on all replicas alike).
  Torch& torch_optimizer(int replica = 0) const { return dynamic_cast<Torch&>(instance(replica)); }
};

template <class Torch, class M, class Options>
DistributedOptimizer<Torch> Strategy::optimizer(const DistributedModule<M>& module, Options options,
                                                const OptimizerOptions& how) {
  return DistributedOptimizer<Torch>(internal::DistributeOptimizer(
      *this, module.state(),
      [&](std::vector<torch::Tensor> parameters, const std::vector<std::string>&) {
        return std::make_unique<Torch>(std::move(parameters), options);
      },
      how));
}
template <class Torch, class M, class Options>
DistributedOptimizer<Torch> Strategy::optimizer(const DistributedModule<M>& module,
                                                const std::vector<ParameterGroup<Options>>& groups,
                                                Options others, const OptimizerOptions& how) {
  internal::check_groups<Torch>(groups);
  return DistributedOptimizer<Torch>(internal::DistributeOptimizer(
      *this, module.state(),
      [&](const std::vector<torch::Tensor>& parameters, const std::vector<std::string>& names) {
        std::vector<std::vector<std::string>> wanted;
        for (const auto& group : groups) wanted.push_back(group.parameters);
        const auto places = internal::group_parameters(names, wanted);
        std::vector<torch::optim::OptimizerParamGroup> all;
        for (std::size_t g = 0; g < places.size(); ++g) {
          std::vector<torch::Tensor> own;
          for (const std::size_t i : places[g]) own.push_back(parameters[i]);
          if (own.empty()) continue;
          all.emplace_back(std::move(own), std::make_unique<Options>(
                                               g < groups.size() ? groups[g].options : others));
        }
        return std::make_unique<Torch>(std::move(all), others);
      },
      how));
}
template <class Torch, class M, class Options>
DistributedOptimizer<Torch> Strategy::optimizer(const DistributedModule<M>& module,
                                                const std::vector<ParameterGroup<Options>>& groups,
                                                Options others) {
  return optimizer<Torch>(module, groups, std::move(others), OptimizerOptions{});
}
template <class Torch, class M, class Options>
DistributedOptimizer<Torch> Strategy::optimizer(const DistributedModule<M>& module,
                                                Options options) {
  return optimizer<Torch>(module, std::move(options), OptimizerOptions{});
}

}  // namespace muster
