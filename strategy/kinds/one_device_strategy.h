// Everything on one device: the program of many replicas, with one.
//
// Threading: as Strategy.
#pragma once

#include <string>
#include <string_view>

#include "strategy/core/strategy.h"

namespace muster {

class OneDeviceStrategy final : public Strategy {
 public:
  // A name may say the task, /job:worker/task:1/device:CPU:0, where this process is that task.
  // INVALID_ARGUMENT: not a device's name, a GPU that this machine does not have, or a device of
  // another task.
  explicit OneDeviceStrategy(const std::string& device);

  std::string_view name() const override { return "OneDeviceStrategy"; }
  bool distributes_variables() const override { return false; }
};

}  // namespace muster
