// Synchronous training on several devices of one machine: every variable has an equal copy on each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strategy/strategy.h"

namespace muster {

class MirroredStrategy final : public Strategy {
 public:
  // No devices: all GPUs of this machine, else CPU:0.
  // INVALID_ARGUMENT: not a device's name, or a device named twice.
  explicit MirroredStrategy(const std::vector<std::string>& devices = {});

  std::string_view name() const override { return "MirroredStrategy"; }
};

}  // namespace muster
