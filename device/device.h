// Names of logical devices in one process.
#pragma once

#include <compare>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace muster::device {

struct Device {
  enum class Type { kCpu, kGpu };
  Type type = Type::kCpu;
  int index = 0;
  auto operator<=>(const Device&) const = default;

  // "CPU:1"
  std::string ToString() const;
  // "/job:localhost/replica:0/task:0/device:CPU:1"
  std::string Canonical() const;
};

// "CPU:1", "cpu:1", "/gpu:0", "/job:localhost/replica:0/task:0/device:CPU:1". INVALID_ARGUMENT:
// another form, an index out of range, or a device of another task.
Result<Device> ParseDevice(std::string_view name);

}  // namespace muster::device
