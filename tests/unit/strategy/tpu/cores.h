// TPU cores for a test.
#pragma once

#include <string>

#include "strategy/tpu/tpu_strategy.h"
#include "strategy/tpu/tpu_system.h"

namespace muster::testing {

// Emulated cores of a mesh such as "2x2x1x2", up while it lives.
class Cores {
 public:
  explicit Cores(const std::string& mesh) : topology(initialize_tpu_system({.topology = mesh})) {}
  ~Cores() { shutdown_tpu_system(); }
  Cores(const Cores&) = delete;
  Cores& operator=(const Cores&) = delete;

  // `replicas` of `cores` cores of a chip each, in the order of the mesh.
  TPUStrategyOptions replicas_of(int cores, int replicas) const {
    return {.experimental_device_assignment =
                DeviceAssignment::build(topology, {.computation_shape = {1, 1, 1, cores},
                                                   .num_replicas = replicas,
                                                   .device_order_mode = DeviceOrderMode::kMesh})};
  }
  TPUStrategyOptions on(DeviceAssignment::Cores cores) const {
    return {.experimental_device_assignment = DeviceAssignment(topology, std::move(cores))};
  }

  const Topology topology;
};

inline std::string tpu(int index) {
  return "/job:localhost/replica:0/task:0/device:TPU:" + std::to_string(index);
}

}  // namespace muster::testing
