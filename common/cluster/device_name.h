// Names of devices: /job:worker/replica:0/task:1/device:GPU:0, whole or in part.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace muster::cluster {

// A name with parts left open. Also read: "/cpu:0", "GPU:1", "/device:GPU:*" (index left open).
struct DeviceName {
  std::optional<std::string> job;
  std::optional<int> replica;
  std::optional<int> task;
  std::optional<std::string> type;  // upper case: CPU, GPU, TPU
  std::optional<int> index;

  //   kInvalidArgument: an unknown part, a part given twice, or no number where one belongs.
  static Result<DeviceName> Parse(std::string_view name);

  // The parts that are set; a type without an index ends in ":*".
  [[nodiscard]] std::string ToString() const;
  // This name with what it leaves open taken from `defaults`.
  [[nodiscard]] DeviceName MergedWith(const DeviceName& defaults) const;

  bool operator==(const DeviceName&) const = default;
};

// `name` as a whole name: what it leaves open is taken from `defaults` (another name, or empty;
// also the device scope that is open), then from /job:localhost/replica:0/task:0/device:CPU:0. The
// acceptance list's rule (CSP-17 to 19); devices of this process get their names from
// device::Place.
[[nodiscard]] Result<std::string> CanonicalDevice(std::string_view name,
                                                  std::string_view defaults = "");

}  // namespace muster::cluster
