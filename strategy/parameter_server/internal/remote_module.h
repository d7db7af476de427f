// A distributed module whose parameters are variables on parameter servers.
//
// Each closure computes with copies of its own, one for each replica, and gives them back when it
// ends: as many are made as closures run at once. In a closure copies begin with the modes
// (train(), eval()) that the module has outside closures, and without gradients; buffers are as the
// copy's last closure left them.
//
// Threading, lifetime: ModuleHost; the module's, which closures that use it keep.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "strategy/parameter_server/internal/closure_session.h"
#include "strategy/parameter_server/internal/remote_component.h"
#include "strategy/train/internal/module_state.h"

namespace muster::internal {

class RemoteModule final : public ModuleHost {
 public:
  // Its parameters are made.
  explicit RemoteModule(ModuleState& module);

  const ModuleCopies& Used() override;
  // Fetches what the closure has not read yet; outside closures all, each time.
  void Fill(int copy) override;
  std::shared_ptr<OptimizerState> OptimizerFor(const std::shared_ptr<ModuleState>& module,
                                               const MakeOptimizer& make,
                                               const OptimizerOptions& how) override;

 private:
  // Copies that no closure has.
  struct Pool {
    Mutex mutex;
    std::vector<const ModuleCopies*> idle MUSTER_GUARDED_BY(mutex);
    std::vector<std::unique_ptr<ModuleCopies>> made MUSTER_GUARDED_BY(mutex);
    // Training modes of the module outside closures.
    std::vector<bool> modes MUSTER_GUARDED_BY(mutex);
  };
  class Lease;

  Lease& LeaseOf(ClosureSession& session);
  std::shared_ptr<Lease> NewLease();

  ModuleState& module_;
  std::vector<RemoteComponent*> components_;  // of the module's parameters
  const std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

}  // namespace muster::internal
