// Where replicas run, and who they are.
#pragma once

#include <string>
#include <vector>

#include "strategy/core/replica_context.h"

namespace muster::testing {

// CPU:first and the n - 1 behind it; from CPU:1 on none is where memory lies by itself.
inline std::vector<std::string> cpus(int n, int first = 1) {
  std::vector<std::string> devices;
  for (int i = 0; i < n; ++i) devices.push_back("CPU:" + std::to_string(first + i));
  return devices;
}
inline std::string cpu(int index) {
  return "/job:localhost/replica:0/task:0/device:CPU:" + std::to_string(index);
}

inline int id() { return replica_context().replica_id_in_sync_group(); }

}  // namespace muster::testing
