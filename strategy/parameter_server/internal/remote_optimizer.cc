#include "strategy/parameter_server/internal/remote_optimizer.h"

#include <algorithm>
#include <utility>

#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/replica_context.h"
#include "strategy/parameter_server/internal/closure_session.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/train/internal/gradients.h"
#include "strategy/train/internal/optimizer_state.h"

namespace muster::internal {

// Takes libtorch's optimizer apart into its groups and attaches one optimizer for each; a variable
// that another one has is found before the servers hear of its group. One that fails lets go of the
// variables of the groups before it.
RemoteOptimizer::RemoteOptimizer(std::shared_ptr<ModuleState> module, const MakeOptimizer& make,
                                 const OptimizerOptions& how)
    : module_(std::move(module)), how_(how), chosen_(TrainedParameters(*module_)) {
  const std::vector<torch::Tensor> own = ParametersOf(0);
  std::vector<std::string> names;
  for (const std::size_t i : chosen_) names.push_back(module_->parameters[i].name());
  const std::unique_ptr<torch::optim::Optimizer> theirs = make(own, names);
  name_ = NameOf(*theirs, *module_);
  const MutexLock lock(rates_->mutex);
  for (const torch::optim::OptimizerParamGroup& of_theirs : theirs->param_groups()) {
    // All are looked at before the first is attached.
    (void)OptimizerSpecOf(of_theirs.options());
    RequireLearningRate(of_theirs.options().get_lr());
  }
  try {
    for (const torch::optim::OptimizerParamGroup& of_theirs : theirs->param_groups()) {
      Group group;
      std::vector<Variable> variables;
      for (const torch::Tensor& parameter : of_theirs.params()) {
        const auto at = std::ranges::find_if(
            own, [&](const torch::Tensor& one) { return one.is_same(parameter); });
        const std::size_t place = chosen_[static_cast<std::size_t>(at - own.begin())];
        group.places.push_back(place);
        variables.push_back(module_->parameters[place]);
      }
      group.optimizer =
          std::make_shared<AttachedOptimizer>(of_theirs.options(), std::move(variables));
      rates_->rates.push_back(group.optimizer->learning_rate());
      groups_.push_back(std::move(group));
    }
  } catch (...) {
    for (const Group& group : groups_) group.optimizer->Release();
    throw;
  }
}

torch::optim::Optimizer& RemoteOptimizer::instance(int) const {
  raise(Unimplemented("torch_optimizer() of {}: the optimizer is on the parameter servers", name_));
}

std::vector<torch::Tensor> RemoteOptimizer::ParametersOf(int copy) const {
  const std::vector<torch::Tensor>& leaves = module_->Used().leaves[static_cast<std::size_t>(copy)];
  std::vector<torch::Tensor> parameters;
  for (const std::size_t i : chosen_) parameters.push_back(leaves[i]);
  return parameters;
}

RemoteOptimizer::Rates& RemoteOptimizer::RatesHere() const {
  ClosureSession* const session = ClosureSession::Current();
  if (session == nullptr) return *rates_;
  return session->Keep<Rates>(rates_, [this] {
    auto rates = std::make_shared<Rates>();
    const MutexLock ours(rates_->mutex);
    const MutexLock lock(rates->mutex);
    rates->rates = rates_->rates;
    return rates;
  });
}

double RemoteOptimizer::LearningRate() const {
  Rates& here = RatesHere();
  const MutexLock lock(here.mutex);
  return here.rates[0];
}

void RemoteOptimizer::SetLearningRate(double rate) const {
  Rates& here = RatesHere();
  const MutexLock lock(here.mutex);
  std::ranges::fill(here.rates, rate);
}

// One update of each parameter on the servers, by the sum of what all copies have found.
torch::Tensor RemoteOptimizer::Step(const DistributedOptimizerBase::Closure* closure) {
  RequireNoOther(*module_->strategy);
  ReplicaContext* const replica = module_->Replica();
  if (replica == nullptr && module_->size() > 1) {
    if (closure != nullptr) RaiseOutsideRun("step(closure)", *this);
    module_->strategy->run([this] { Step(nullptr); });
    return {};
  }
  torch::Tensor loss;
  if (closure != nullptr) {
    const torch::AutoGradMode gradients(true);
    loss = (*closure)();
  }
  const int copy = replica == nullptr ? 0 : replica->local_replica_id();
  module_->Check(copy);
  if (module_->size() == 1) {
    Update(GradientsOf(ParametersOf(0)));
    return loss;
  }
  if (closure != nullptr && how_.all_reduce_gradients) loss = SumOfLosses(*replica, loss);
  StepTogether(*replica, copy, *this, [this] { UpdateTogether(); });
  return loss;
}

void RemoteOptimizer::UpdateTogether() {
  const std::vector<torch::Tensor> parameters = ParametersOf(0);
  std::vector<std::vector<torch::Tensor>> gradients;
  for (int copy = 0; copy < module_->size(); ++copy) {
    gradients.push_back(GradientsOf(ParametersOf(copy)));
    if (!how_.all_reduce_gradients) break;  // they are all equal
  }
  Strategy& strategy = *module_->strategy;
  Update(
      SumOnto(strategy.cross_device_ops(), strategy.parameter_devices()[0], gradients, parameters));
}

void RemoteOptimizer::Update(const std::vector<torch::Tensor>& gradients) {
  std::vector<torch::Tensor> by_place(module_->parameters.size());
  for (std::size_t i = 0; i < chosen_.size(); ++i) by_place[chosen_[i]] = gradients[i];
  std::vector<double> rates;
  {
    Rates& here = RatesHere();
    const MutexLock lock(here.mutex);
    rates = here.rates;
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<VariableGradient> own;
    for (const std::size_t place : groups_[g].places) {
      own.push_back({by_place[place], module_->parameters[place]});
    }
    groups_[g].optimizer->Apply(own, rates[g]);
  }
}

void RemoteOptimizer::ReduceGradients() {
  RequireNoOther(*module_->strategy);
  if (module_->size() == 1) return;
  ReplicaContext* const replica = module_->Replica();
  if (replica == nullptr) RaiseOutsideRun("reduce_gradients()", *this);
  const int copy = replica->local_replica_id();
  module_->Check(copy);
  SumGradientsInPlace(*replica, ParametersOf(copy));
}

std::vector<std::string> RemoteOptimizer::Names() const {
  std::vector<std::string> all;
  for (const Group& group : groups_) {
    const std::vector<std::string> names = group.optimizer->Names();
    all.insert(all.end(), names.begin(), names.end());
  }
  return all;
}

std::map<std::string, torch::Tensor> RemoteOptimizer::Values() const {
  RequireCrossReplica(*module_->strategy, "state()", "it outside run()");
  std::map<std::string, torch::Tensor> all;
  for (const Group& group : groups_) all.merge(group.optimizer->Values());
  return all;
}

std::map<std::string, torch::Tensor> RemoteOptimizer::PartOf(
    const Group& group, const std::map<std::string, torch::Tensor>& values) {
  std::map<std::string, torch::Tensor> own;
  for (const std::string& name : group.optimizer->Names()) {
    if (const auto found = values.find(name); found != values.end()) own.insert(*found);
  }
  return own;
}

void RemoteOptimizer::Check(const std::map<std::string, torch::Tensor>& values) const {
  RequireCrossReplica(*module_->strategy, "load_state()", "it outside run()");
  std::size_t known = 0;
  for (const Group& group : groups_) {
    const auto own = PartOf(group, values);
    group.optimizer->Check(own);
    known += own.size();
  }
  if (known == values.size()) return;
  const std::vector<std::string> names = Names();
  for (const auto& [name, value] : values) {
    if (std::ranges::find(names, name) != names.end()) continue;
    raise(InvalidArgument("optimizer state {} belongs to no parameter of {}", name, name_));
  }
}

void RemoteOptimizer::Restore(const std::map<std::string, torch::Tensor>& values) const {
  for (const Group& group : groups_) group.optimizer->Restore(PartOf(group, values));
}

}  // namespace muster::internal
