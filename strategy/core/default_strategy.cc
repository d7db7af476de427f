#include "strategy/core/default_strategy.h"

#include "strategy/base/internal/raise.h"

namespace muster {

DefaultStrategy::DefaultStrategy() : Strategy({device::Place{}}, {device::Place{}}) {}

const std::vector<std::string>& DefaultStrategy::worker_devices() const {
  raise(FailedPrecondition("worker_devices is unsupported by the default strategy"));
}

const std::vector<std::string>& DefaultStrategy::parameter_devices() const {
  raise(FailedPrecondition("parameter_devices is unsupported by the default strategy"));
}

DefaultStrategy& default_strategy() {
  static auto& strategy = *new DefaultStrategy;
  return strategy;
}

ReplicaContext& default_replica_context() {
  static auto& context = *new ReplicaContext(default_strategy(), 0, nullptr);
  return context;
}

}  // namespace muster
