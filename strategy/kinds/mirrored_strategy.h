// Synchronous training on several devices of one machine: every variable has an equal copy on each.
//
// Threading: as Strategy.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/core/strategy.h"

namespace muster {

class MirroredStrategy final : public Strategy {
 public:
  // No devices: all GPUs of this machine, else CPU:0.
  // INVALID_ARGUMENT: not a device's name, a GPU that this machine does not have, or a device named
  // twice.
  // No ops: what mirrored_cross_device_ops() takes, on CPU devices CollectiveAllReduce (RING).
  explicit MirroredStrategy(const std::vector<std::string>& devices = {},
                            std::shared_ptr<CrossDeviceOps> cross_device_ops = nullptr);

  std::string_view name() const override { return "MirroredStrategy"; }
};

}  // namespace muster
