#include "strategy/train/optimizer.h"

#include <limits>
#include <optional>
#include <typeinfo>

#include <c10/util/Type.h>
#include <fmt/core.h>

#include "common/base/mutex.h"
#include "common/base/words.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/replica_context.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/train/internal/early_sums.h"
#include "strategy/train/internal/gradients.h"
#include "strategy/train/internal/module_state.h"
#include "strategy/train/internal/optimizer_slots.h"
#include "strategy/train/internal/optimizer_state.h"

namespace muster {
namespace internal {
namespace {

using torch::optim::Optimizer;

// Gives parameters other gradients while it lives.
class LentGradients {
 public:
  explicit LentGradients(const std::vector<torch::Tensor>& parameters) : parameters_(parameters) {}
  ~LentGradients() { Restore(); }
  LentGradients(const LentGradients&) = delete;
  LentGradients& operator=(const LentGradients&) = delete;

  void Lend(std::vector<torch::Tensor> gradients) {
    Restore();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      own_.push_back(parameters_[i].grad());
      parameters_[i].mutable_grad() = std::move(gradients[i]);
    }
  }
  void Restore() {
    for (std::size_t i = 0; i < own_.size(); ++i) parameters_[i].mutable_grad() = own_[i];
    own_.clear();
  }

 private:
  const std::vector<torch::Tensor>& parameters_;
  std::vector<torch::Tensor> own_;
};

// Nothing: an optimizer without a learning rate.
std::optional<double> RateOf(const torch::optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<torch::Tensor> GradientsOf(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

void SumGradientsInPlace(ReplicaContext& replica, const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> sums = SumOverReplicas(replica, GradientsOf(parameters), parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = std::move(sums[i]);
  }
}

torch::Tensor SumOfLosses(ReplicaContext& replica, const torch::Tensor& loss) {
  const torch::NoGradGuard no_grad;
  return replica.all_reduce(ReduceOp::kSum, loss.detach());
}

void RaiseOutsideRun(std::string_view call, const OptimizerState& optimizer) {
  raise(FailedPrecondition("{} of {} must be called by every replica ({}), inside run()", call,
                           optimizer.name(), optimizer.module().size()));
}

void StepTogether(ReplicaContext& replica, int copy, const OptimizerState& optimizer,
                  const std::function<void()>& update) {
  struct Arrival {
    const OptimizerState* optimizer;
    int copy;
  } mine{&optimizer, copy};
  replica.meet("step of " + optimizer.name(), mine, [&](const Arrivals<Arrival>& all) {
    for (const Arrival& arrival : all) {
      if (arrival.optimizer == &optimizer) continue;
      raise(FailedPrecondition("replica {} calls step() of another optimizer than the others",
                               arrival.copy));
    }
    const FrameGuard merge(
        {.kind = Frame::Kind::kMerge, .strategy = &*optimizer.module().strategy});
    update();
  });
}

std::string NameOf(const torch::optim::Optimizer& theirs, const ModuleState& module) {
  return fmt::format("{} of module {}", c10::demangle(typeid(theirs).name()), module.name);
}

void RequireLearningRate(double rate) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (rate >= 0 && rate <= kMost) return;
  raise(InvalidArgument("a learning rate of {}; it must be from 0 to {}", rate, kMost));
}

std::vector<std::size_t> TrainedParameters(const ModuleState& module) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < module.parameters.size(); ++i) {
    if (module.masters[0][i].requires_grad()) chosen.push_back(i);
  }
  if (!chosen.empty()) return chosen;
  raise(InvalidArgument("optimizer(): module {} has no parameter that requires a gradient",
                        module.name));
}

// libtorch's optimizers over the copies of a module.
class LocalOptimizer final : public OptimizerState {
 public:
  LocalOptimizer(std::shared_ptr<ModuleState> module, const MakeOptimizer& make,
                 const OptimizerOptions& how)
      : module_(std::move(module)), how_(how), number_(module_->strategy->early_turns().Add()) {
    Choose();
    for (std::size_t master = 0; master < masters_.size(); ++master) {
      const device::PlaceScope here(module_->parameter_device(static_cast<int>(master)));
      optimizers_.push_back(make(masters_[master], names_));
    }
    // libtorch lets an infinite one pass.
    for (const auto& group : optimizers_[0]->param_groups()) {
      if (const auto rate = RateOf(group.options())) RequireLearningRate(*rate);
    }
    name_ = NameOf(*optimizers_[0], *module_);
    if (!how.reduce_in_backward || module_->central()) return;
    if (!EarlySums::Helps(*module_->strategy)) return;
    for (std::size_t copy = 0; copy < leaves_.size(); ++copy) {
      early_.push_back(EarlySums::Of(*module_->strategy, number_, static_cast<int>(copy),
                                     leaves_[copy], how.bytes_per_pack));
    }
  }

  const std::string& name() const override { return name_; }
  const ModuleState& module() const override { return *module_; }
  collectives::Group* collectives() const override { return module_->strategy->collectives(); }
  bool reduces_gradients() const override { return how_.all_reduce_gradients; }
  Optimizer& instance(int replica) const override {
    if (replica < 0 || replica >= module_->size()) {
      raise(OutOfRange("replica {} of {}, which has {}", replica, name_, module_->size()));
    }
    return *optimizers_[masters_.size() == 1 ? 0 : static_cast<std::size_t>(replica)];
  }

  torch::Tensor Step(const DistributedOptimizerBase::Closure* closure) override {
    RequireNoOther(*module_->strategy);
    ReplicaContext* const replica = module_->Replica();
    if (replica == nullptr && Together()) {
      if (closure != nullptr) RaiseOutsideRun("step(closure)", *this);
      module_->strategy->run([this] { Step(nullptr); });
      return {};
    }
    const int copy = replica == nullptr ? 0 : replica->local_replica_id();
    module_->Check(copy);
    return module_->central() ? StepShared(*replica, copy, closure)
                              : StepOwn(replica, copy, closure);
  }

  void ReduceGradients() override {
    RequireNoOther(*module_->strategy);
    if (!Together()) return;
    ReplicaContext* const replica = module_->Replica();
    if (replica == nullptr) RaiseOutsideRun("reduce_gradients()", *this);
    const int copy = replica->local_replica_id();
    module_->Check(copy);
    std::vector<torch::Tensor> sums = SumsOf(*replica, copy);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      LeavesOf(copy)[i].mutable_grad() = std::move(sums[i]);
    }
  }

  double LearningRate() const override {
    const MutexLock lock(rate_mutex_);
    const auto rate = RateOf(instance(module_->Here()).param_groups().at(0).options());
    if (rate) return *rate;
    raise(Unimplemented("{} has no learning rate", name_));
  }
  void SetLearningRate(double rate) const override {
    const MutexLock lock(rate_mutex_);
    const ReplicaContext* const replica = module_->Replica();
    for (int copy = 0; copy < static_cast<int>(optimizers_.size()); ++copy) {
      const bool mine =
          replica == nullptr || module_->central() || replica->local_replica_id() == copy;
      if (!mine) continue;
      try {
        for (auto& group : optimizers_[static_cast<std::size_t>(copy)]->param_groups()) {
          group.options().set_lr(rate);
        }
      } catch (const c10::Error&) {
        raise(Unimplemented("{} has no learning rate", name_));
      }
    }
  }

  std::vector<std::string> Names() const override {
    return SlotNames(*optimizers_[0], masters_[0], names_);
  }
  std::map<std::string, torch::Tensor> Values() const override {
    RequireCrossReplica(*module_->strategy, "state()", "it outside run()");
    return ReadSlots(*optimizers_[0], masters_[0], names_);
  }
  void ValuesInto(std::map<std::string, torch::Tensor>& kept) const override {
    RequireCrossReplica(*module_->strategy, "state()", "it outside run()");
    ReadSlotsInto(*optimizers_[0], masters_[0], names_, kept);
  }
  void Check(const std::map<std::string, torch::Tensor>& slots) const override {
    RequireCrossReplica(*module_->strategy, "load_state()", "it outside run()");
    CheckSlots(*optimizers_[0], masters_[0], names_, slots);
  }
  void Restore(const std::map<std::string, torch::Tensor>& slots) const override {
    for (std::size_t master = 0; master < masters_.size(); ++master) {
      const device::PlaceScope here(module_->parameter_device(static_cast<int>(master)));
      WriteSlots(*optimizers_[master], masters_[master], names_, slots);
    }
  }

 private:
  // Holds the components that the optimizer of `master` writes in place.
  class Writing {
   public:
    Writing(const LocalOptimizer& state, int master) : state_(state), master_(master) {}
    void Lock() {
      for (const std::size_t i : state_.chosen_) {
        held_.emplace_back(state_.module_->parameters[i].state()->adopted(master_));
      }
    }
    void Unlock() { held_.clear(); }

   private:
    const LocalOptimizer& state_;
    const int master_;
    std::vector<AdoptedComponent::InPlace> held_;
  };

  // Several replicas bring gradients.
  bool Together() const { return module_->strategy->num_replicas_in_sync() > 1; }

  // The parameters that are to be trained.
  void Choose() {
    const ModuleState& module = *module_;
    chosen_ = TrainedParameters(module);
    for (const std::size_t i : chosen_) names_.push_back(module.parameters[i].name());
    const auto take = [&](const std::vector<std::vector<torch::Tensor>>& from) {
      std::vector<std::vector<torch::Tensor>> taken(from.size());
      for (std::size_t r = 0; r < from.size(); ++r) {
        for (const std::size_t i : chosen_) taken[r].push_back(from[r][i]);
      }
      return taken;
    };
    masters_ = take(module.masters);
    leaves_ = take(module.leaves);
  }

  const std::vector<torch::Tensor>& LeavesOf(int copy) const {
    return leaves_[static_cast<std::size_t>(copy)];
  }

  std::vector<torch::Tensor> SumsOf(ReplicaContext& replica, int copy) const {
    const std::vector<torch::Tensor>& parameters = LeavesOf(copy);
    const std::vector<torch::Tensor> gradients = GradientsOf(parameters);
    const Strategy& strategy = replica.strategy();
    if (strategy.collectives() != nullptr) strategy.early_turns().Step(number_, replica);
    return early_.empty() ? SumOverReplicas(replica, gradients, parameters)
                          : early_[static_cast<std::size_t>(copy)]->Finish(replica, gradients);
  }

  [[noreturn]] void RaiseUnfit(const c10::Error& error) const {
    raise(InvalidArgument("step() of {}: {}", name_, error.what_without_backtrace()));
  }
  // INVALID_ARGUMENT: gradients that this optimizer cannot work with (sparse ones, most of them).
  void Update(Optimizer& optimizer) const {
    try {
      optimizer.step();
    } catch (const c10::Error& error) {
      RaiseUnfit(error);
    }
  }

  // Updates one copy.
  torch::Tensor StepOwn(ReplicaContext* replica, int copy,
                        const DistributedOptimizerBase::Closure* closure) {
    const device::PlaceScope here(module_->parameter_device(copy));
    Optimizer& optimizer = instance(copy);
    const std::vector<torch::Tensor>& parameters = LeavesOf(copy);
    const bool reduces = how_.all_reduce_gradients && Together();
    LentGradients lent(parameters);
    const auto reduce = [&] {
      if (reduces) lent.Lend(SumsOf(*replica, copy));
    };
    Writing writing(*this, copy);
    if (closure == nullptr) {
      reduce();
      writing.Lock();
      Update(optimizer);
      return {};
    }
    bool evaluating = false;  // what is thrown then is the closure's own
    const auto evaluate = [&] {
      evaluating = true;
      writing.Unlock();
      lent.Restore();
      torch::Tensor loss = (*closure)();
      reduce();
      if (reduces) loss = SumOfLosses(*replica, loss);
      writing.Lock();
      evaluating = false;
      return loss;
    };
    writing.Lock();
    try {
      return optimizer.step(evaluate);
    } catch (const c10::Error& error) {
      if (evaluating) throw;
      RaiseUnfit(error);
    }
  }

  // Updates the one value of all replicas, once.
  torch::Tensor StepShared(ReplicaContext& replica, int copy,
                           const DistributedOptimizerBase::Closure* closure) {
    torch::Tensor loss;
    if (closure != nullptr) {
      if (dynamic_cast<torch::optim::LBFGS*>(optimizers_[0].get()) != nullptr) {
        raise(
            Unimplemented("{} asks for gradients in the midst of its update, which under central "
                          "storage no replica makes: use a MirroredStrategy",
                          name_));
      }
      const torch::AutoGradMode gradients(true);
      loss = (*closure)();
      if (how_.all_reduce_gradients) loss = SumOfLosses(replica, loss);
    }
    StepTogether(replica, copy, *this, [this] { UpdateShared(); });
    return loss;
  }

  void UpdateShared() {
    const device::PlaceScope here(module_->parameter_device(0));
    std::vector<std::vector<torch::Tensor>> gradients;
    for (const auto& leaves : leaves_) {
      gradients.push_back(GradientsOf(leaves));
      if (!how_.all_reduce_gradients) break;  // they are all equal
    }
    LentGradients lent(masters_[0]);
    Strategy& strategy = *module_->strategy;
    lent.Lend(SumOnto(strategy.cross_device_ops(), strategy.parameter_devices()[0], gradients,
                      masters_[0]));
    Writing writing(*this, 0);
    writing.Lock();
    Update(*optimizers_[0]);
  }

  const std::shared_ptr<ModuleState> module_;
  const OptimizerOptions how_;
  const int number_;  // among the strategy's
  std::string name_;
  std::vector<std::size_t> chosen_;  // of the module's parameters
  std::vector<std::string> names_;
  std::vector<std::vector<torch::Tensor>> masters_;  // of the chosen; one for each optimizer
  std::vector<std::vector<torch::Tensor>> leaves_;   // of the chosen; one for each copy
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
  std::vector<std::shared_ptr<EarlySums>> early_;  // for each copy, or none
  mutable Mutex rate_mutex_;  // of what libtorch's optimizers keep as their rate
};

std::vector<std::vector<std::size_t>> group_parameters(
    const std::vector<std::string>& names, const std::vector<std::vector<std::string>>& groups) {
  std::vector<std::vector<std::size_t>> places(groups.size() + 1);
  std::vector<std::size_t> group_of(names.size(), groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const std::string& wanted : groups[g]) {
      bool found = false;
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (names[i] != wanted && !names[i].starts_with(wanted + ".")) continue;
        found = true;
        if (group_of[i] != groups.size() && group_of[i] != g) {
          raise(InvalidArgument("optimizer(): parameter {} is in groups {} and {}", names[i],
                                group_of[i], g));
        }
        group_of[i] = g;
      }
      if (!found) {
        raise(InvalidArgument(
            "optimizer(): group {} names \"{}\", which is no trained parameter and no part that "
            "has one; there are {}",
            g, wanted, Joined(names)));
      }
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i) places[group_of[i]].push_back(i);
  return places;
}

void raise_group(std::size_t group, const c10::Error& error) {
  raise(InvalidArgument("optimizer(): group {}: {}", group, error.what_without_backtrace()));
}

std::shared_ptr<OptimizerState> DistributeOptimizer(Strategy& strategy,
                                                    std::shared_ptr<ModuleState> module,
                                                    const MakeOptimizer& make,
                                                    const OptimizerOptions& how) {
  if (module->strategy.get() != &strategy) {
    raise(InvalidArgument("optimizer(): module {} was distributed by another strategy ({})",
                          module->name, module->strategy->name()));
  }
  RequireCrossReplica(strategy, "optimizer()", "it before run()");
  if (how.bytes_per_pack < 1) {
    raise(InvalidArgument("optimizer(): bytes_per_pack is {}: it must be at least 1",
                          how.bytes_per_pack));
  }
  try {
    if (module->host != nullptr) return module->host->OptimizerFor(module, make, how);
    return std::make_shared<LocalOptimizer>(std::move(module), make, how);
  } catch (const c10::Error& error) {
    raise(InvalidArgument("optimizer(): {}", error.what_without_backtrace()));
  }
}

}  // namespace internal

void DistributedOptimizerBase::step() const { (void)state_->Step(nullptr); }
torch::Tensor DistributedOptimizerBase::step(const Closure& closure) const {
  return state_->Step(&closure);
}
void DistributedOptimizerBase::reduce_gradients() const { state_->ReduceGradients(); }
void DistributedOptimizerBase::zero_grad() const { state_->module().ZeroGrad(); }
double DistributedOptimizerBase::learning_rate() const { return state_->LearningRate(); }
void DistributedOptimizerBase::set_learning_rate(double rate) const {
  internal::RequireLearningRate(rate);
  state_->SetLearningRate(rate);
}
std::map<std::string, torch::Tensor> DistributedOptimizerBase::state() const {
  return state_->Values();
}
void DistributedOptimizerBase::load_state(const std::map<std::string, torch::Tensor>& state) const {
  state_->Check(state);
  state_->Restore(state);
}
std::shared_ptr<const internal::SavedState> DistributedOptimizerBase::saved_state() const {
  return state_;
}
const std::string& DistributedOptimizerBase::name() const { return state_->name(); }
torch::optim::Optimizer& DistributedOptimizerBase::instance(int replica) const {
  return state_->instance(replica);
}

}  // namespace muster
