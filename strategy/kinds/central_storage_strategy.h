// Several replicas that share one copy of each variable, on the parameter device.
//
// Threading: as Strategy.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/core/strategy.h"

namespace muster {

class CentralStorageStrategy final : public Strategy {
 public:
  // No compute devices: all GPUs of this machine, else CPU:0. Parameter device: the compute device
  // when there is one, else CPU:0. A replica that reads a variable gets a copy on its own device.
  // INVALID_ARGUMENT: not a device's name, a GPU that this machine does not have, or a device named
  // twice.
  explicit CentralStorageStrategy(const std::vector<std::string>& compute_devices = {},
                                  const std::optional<std::string>& parameter_device = {});

  std::string_view name() const override { return "CentralStorageStrategy"; }
};

}  // namespace muster
