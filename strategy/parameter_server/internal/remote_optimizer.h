// An optimizer of a distributed module whose parameters, slots and updates are on parameter
// servers.
//
// libtorch's own object is made for its options alone; each of its groups is an optimizer on the
// servers. Calls and their errors: DistributedOptimizerBase.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "strategy/parameter_server/internal/attached_optimizer.h"
#include "strategy/train/internal/module_state.h"
#include "strategy/train/internal/optimizer_state.h"

namespace muster::internal {

class RemoteOptimizer final : public OptimizerState {
 public:
  RemoteOptimizer(std::shared_ptr<ModuleState> module, const MakeOptimizer& make,
                  const OptimizerOptions& how);

  const std::string& name() const override { return name_; }
  const ModuleState& module() const override { return *module_; }
  bool reduces_gradients() const override { return how_.all_reduce_gradients; }
  torch::optim::Optimizer& instance(int replica) const override;
  torch::Tensor Step(const DistributedOptimizerBase::Closure* closure) override;
  void ReduceGradients() override;
  // In a closure: for it alone.
  double LearningRate() const override;
  void SetLearningRate(double rate) const override;

  std::vector<std::string> Names() const override;
  std::map<std::string, torch::Tensor> Values() const override;
  void Check(const std::map<std::string, torch::Tensor>& values) const override;
  void Restore(const std::map<std::string, torch::Tensor>& values) const override;

 private:
  struct Group {
    std::vector<std::size_t> places;  // of its parameters, in the module's
    std::shared_ptr<AttachedOptimizer> optimizer;
  };
  // Their learning rates, by group.
  struct Rates {
    Mutex mutex;
    std::vector<double> rates MUSTER_GUARDED_BY(mutex);
  };

  // This closure's, or those outside closures.
  Rates& RatesHere() const;
  // The trained parameters of a copy.
  std::vector<torch::Tensor> ParametersOf(int copy) const;
  // One gradient for each trained parameter.
  void Update(const std::vector<torch::Tensor>& gradients);
  void UpdateTogether();
  // Those of `values` that are the group's.
  static std::map<std::string, torch::Tensor> PartOf(
      const Group& group, const std::map<std::string, torch::Tensor>& values);

  const std::shared_ptr<ModuleState> module_;
  const OptimizerOptions how_;
  const std::vector<std::size_t> chosen_;
  std::string name_;
  std::vector<Group> groups_;
  // Outside closures; what a closure has is kept for it (ClosureSession::Keep).
  const std::shared_ptr<Rates> rates_ = std::make_shared<Rates>();
};

}  // namespace muster::internal
