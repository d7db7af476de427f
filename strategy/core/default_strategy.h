// What is current outside any scope: one replica, on the caller's thread, with no variables of its
// own. Threading: as Strategy.
#pragma once

#include <string_view>

#include "strategy/core/strategy.h"

namespace muster {

class DefaultStrategy final : public Strategy {
 public:
  std::string_view name() const override { return "DefaultStrategy"; }
  bool distributes_variables() const override { return false; }
  // FAILED_PRECONDITION: it has no devices of its own.
  const std::vector<std::string>& worker_devices() const override;
  const std::vector<std::string>& parameter_devices() const override;
  // The one value as it is.
  template <class F>
  auto distribute_values_from_function(F&& value_fn) {
    return value_fn(ValueContext{});
  }

 private:
  DefaultStrategy();
  friend DefaultStrategy& default_strategy();
};

// The one and only; never destroyed.
DefaultStrategy& default_strategy();
// Its replica context, for every thread.
ReplicaContext& default_replica_context();

}  // namespace muster
