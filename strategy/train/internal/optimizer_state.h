// What is behind the handles of an optimizer.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/core/replica_context.h"
#include "strategy/train/internal/module_state.h"
#include "strategy/train/internal/saved_state.h"
#include "strategy/train/optimizer.h"

namespace muster::internal {

// Who makes the updates: libtorch's optimizer over the copies, or parameter servers. Calls and
// their errors: DistributedOptimizerBase.
class OptimizerState : public SavedState {
 public:
  virtual const std::string& name() const = 0;
  virtual const ModuleState& module() const = 0;
  // Its step sums the gradients of all replicas first.
  virtual bool reduces_gradients() const = 0;
  // UNIMPLEMENTED: there is none here.
  virtual torch::optim::Optimizer& instance(int replica) const = 0;
  // `closure`: null, or what makes the gradients.
  virtual torch::Tensor Step(const DistributedOptimizerBase::Closure* closure) = 0;
  virtual void ReduceGradients() = 0;
  virtual double LearningRate() const = 0;
  virtual void SetLearningRate(double rate) const = 0;
};

// "torch::optim::SGD of module net": what it is called in errors.
std::string NameOf(const torch::optim::Optimizer& theirs, const ModuleState& module);
// INVALID_ARGUMENT: below 0, no number, or more than a float32 can say.
void RequireLearningRate(double rate);
// The places in the module's parameters of those that are to be trained.
//   INVALID_ARGUMENT: there are none.
std::vector<std::size_t> TrainedParameters(const ModuleState& module);
std::vector<torch::Tensor> GradientsOf(const std::vector<torch::Tensor>& parameters);
// Puts the sums over replicas into .grad() of this replica's parameters. All replicas together.
void SumGradientsInPlace(ReplicaContext& replica, const std::vector<torch::Tensor>& parameters);
// The sum of their losses. All replicas together.
torch::Tensor SumOfLosses(ReplicaContext& replica, const torch::Tensor& loss);
// FAILED_PRECONDITION: `call` is for every replica, inside run().
[[noreturn]] void RaiseOutsideRun(std::string_view call, const OptimizerState& optimizer);
// Meets the other replicas in step(), and runs `update` once, across replicas.
//   FAILED_PRECONDITION: one of them came with another optimizer.
void StepTogether(ReplicaContext& replica, int copy, const OptimizerState& optimizer,
                  const std::function<void()>& update);

}  // namespace muster::internal
