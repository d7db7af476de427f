#include "strategy/parameter_server/internal/remote_module.h"

#include <utility>

#include "strategy/parameter_server/internal/remote_optimizer.h"
#include "strategy/values/distributed_values.h"

namespace muster::internal {
namespace {

std::vector<bool> ModesOf(const ModuleCopies& copies) {
  std::vector<bool> modes;
  for (const torch::nn::Module* part : copies.flat[0]) modes.push_back(part->is_training());
  return modes;
}

// Parents come first, so a module's own mode is set after its parent's was set for it.
void SetModes(const ModuleCopies& copies, const std::vector<bool>& modes) {
  for (const auto& flat : copies.flat) {
    for (std::size_t i = 0; i < flat.size(); ++i) {
      if (flat[i]->is_training() != modes[i]) flat[i]->train(modes[i]);
    }
  }
}

}  // namespace

// Copies that one closure has. The module, whose own they may be, lives as long (Keep()), also one
// that the function has made and dropped.
class RemoteModule::Lease {
 public:
  Lease(std::shared_ptr<Pool> pool, const ModuleCopies& copies, std::vector<bool> modes)
      : pool_(std::move(pool)),
        copies_(copies),
        modes_(std::move(modes)),
        filled_(copies.copies.size()) {
    SetModes(copies_, modes_);
    for (const auto& leaves : copies_.leaves) {
      for (const torch::Tensor& leaf : leaves) leaf.mutable_grad() = torch::Tensor();
    }
  }
  ~Lease() {
    SetModes(copies_, modes_);
    const MutexLock lock(pool_->mutex);
    pool_->idle.push_back(&copies_);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const ModuleCopies& copies() const { return copies_; }

  // What copy `copy` was filled with. A copy's thread only.
  struct Filled {
    int slot = -1;
    std::uint64_t writes = 0;
  };
  Filled& filled(int copy) { return filled_[static_cast<std::size_t>(copy)]; }

 private:
  const std::shared_ptr<Pool> pool_;
  const ModuleCopies& copies_;
  const std::vector<bool> modes_;
  std::vector<Filled> filled_;
};

RemoteModule::RemoteModule(ModuleState& module) : module_(module) {
  for (const Variable& parameter : module.parameters) {
    components_.push_back(&remote_component(parameter));
  }
  // An executor has no other use for the module's own copies; a driver has, beside the closures of
  // local_cluster().
  const bool driver = !components_.empty() && components_[0]->made_here();
  if (driver) return;
  const MutexLock lock(pool_->mutex);
  pool_->idle.push_back(&module);
}

// In an executor the module's own copies come first: as long as nobody has them, their modes are
// those that the module has outside closures.
std::shared_ptr<RemoteModule::Lease> RemoteModule::NewLease() {
  const MutexLock lock(pool_->mutex);
  const bool idle = !pool_->idle.empty();
  const ModuleCopies* copies = idle ? pool_->idle.back() : nullptr;
  const bool driver = components_.empty() ? false : components_[0]->made_here();
  if (driver || copies == &module_ || pool_->modes.empty()) pool_->modes = ModesOf(module_);
  if (idle) {
    pool_->idle.pop_back();
  } else {
    copies = pool_->made.emplace_back(module_.NewCopies()).get();
  }
  return std::make_shared<Lease>(pool_, *copies, pool_->modes);
}

RemoteModule::Lease& RemoteModule::LeaseOf(ClosureSession& session) {
  return session.Keep<Lease>(module_.shared_from_this(), [this] { return NewLease(); });
}

const ModuleCopies& RemoteModule::Used() {
  ClosureSession* const session = ClosureSession::Current();
  if (session == nullptr) return module_;
  return LeaseOf(*session).copies();
}

// Leaves whose values are what they should be stay untouched: to give one a value ends the backward
// passes over its old one. In a closure nothing is asked unless something was written since.
void RemoteModule::Fill(int copy) {
  if (components_.empty()) return;
  const auto index = static_cast<std::size_t>(copy);
  ClosureSession* const session = ClosureSession::Current();
  if (session == nullptr) {
    std::vector<ps::VariableHandle> variables;
    for (const RemoteComponent* component : components_) variables.push_back(component->placed());
    const std::vector<torch::Tensor> values =
        ReadVariables(*components_[0]->connection(), variables, nullptr);
    const MutexLock lock(pool_->mutex);  // nobody copies them
    for (std::size_t i = 0; i < values.size(); ++i) {
      const torch::Tensor& leaf = module_.leaves[index][i];
      if (!leaf.detach().cpu().equal(values[i])) GiveValue(leaf, values[i]);
    }
    return;
  }
  Lease& lease = LeaseOf(*session);
  const int slot = detail::current_replica() + 1;
  const Lease::Filled now{.slot = slot, .writes = session->writes()};
  Lease::Filled& filled = lease.filled(copy);
  if (filled.slot == now.slot && filled.writes == now.writes) return;
  std::vector<ClosureSession::ModuleLeaf> leaves;
  for (std::size_t i = 0; i < components_.size(); ++i) {
    leaves.push_back(
        {.variable = components_[i]->placed(), .leaf = lease.copies().leaves[index][i]});
  }
  session->Fill(leaves, slot);
  filled = now;
}

std::shared_ptr<OptimizerState> RemoteModule::OptimizerFor(
    const std::shared_ptr<ModuleState>& module, const MakeOptimizer& make,
    const OptimizerOptions& how) {
  return std::make_shared<RemoteOptimizer>(module, make, how);
}

}  // namespace muster::internal
