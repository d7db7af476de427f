// Which cores of a TPU system are which logical cores of which replica.
//
//   const Topology topology = initialize_tpu_system({.topology = "2x2x1x2"});
//   const auto assignment =
//       DeviceAssignment::build(topology, {.computation_shape = {1, 1, 1, 2}, .num_replicas = 4});
//   assignment.tpu_device(/*replica=*/3, /*logical_core=*/1);  // "/task:0/device:TPU:5"
//
// Threading: a plain value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strategy/tpu/topology.h"

namespace muster {

// In which order build() goes through the mesh.
enum class DeviceOrderMode {
  kAuto,  // kRing where it is possible
  kRing,  // replicas, and the chips of each, lie on rings of neighbours
  kMesh,  // replicas along the cores of a chip, then x, y, z
};

struct DeviceAssignmentOptions {
  // Along x, y, z and within a chip: how many cores a replica has, and how far apart they are.
  // Empty: all ones.
  std::vector<int> computation_shape = {};
  std::vector<int> computation_stride = {};
  int num_replicas = 1;
  DeviceOrderMode device_order_mode = DeviceOrderMode::kAuto;
};

class DeviceAssignment {
 public:
  // By replica, then by logical core.
  using Cores = std::vector<std::vector<Topology::Coordinates>>;

  //   INVALID_ARGUMENT: no replica, replicas with different numbers of cores, coordinates that are
  //   not four numbers of a device of the topology, or one core that is given twice.
  DeviceAssignment(Topology topology, Cores core_assignment);

  // Spreads replicas of the given shape over the mesh. On a mesh with holes devices are taken in
  // the order of tasks and ordinals. An odd number of chips along a dimension gives no ring: they
  // are then taken with x fastest, which is said in the log.
  //   INVALID_ARGUMENT: a shape or stride of another rank, or with a number below 1; a footprint
  //   (shape * stride) beyond the mesh; more replicas than fit, or none; kRing where it is not
  //   possible, or on a mesh with holes; a stride on a mesh with holes.
  static DeviceAssignment build(const Topology& topology,
                                const DeviceAssignmentOptions& options = {});

  const Topology& topology() const { return topology_; }
  const Cores& core_assignment() const { return core_assignment_; }
  int num_replicas() const { return static_cast<int>(core_assignment_.size()); }
  int num_cores_per_replica() const { return static_cast<int>(core_assignment_[0].size()); }

  // These: OUT_OF_RANGE for a replica or a logical core that is not there.
  const Topology::Coordinates& coordinates(int replica, int logical_core) const;
  int tpu_ordinal(int replica = 0, int logical_core = 0) const;
  std::string tpu_device(int replica = 0, int logical_core = 0,
                         const std::optional<std::string>& job = {}) const;
  std::string host_device(int replica = 0, int logical_core = 0,
                          const std::optional<std::string>& job = {}) const;

  // The replicas whose logical core is on this task, ascending. INVALID_ARGUMENT: none.
  std::vector<int> lookup_replicas(int task, int logical_core) const;
  // How many tasks have a core of it.
  int num_hosts() const;

 private:
  Topology topology_;
  Cores core_assignment_;
};

}  // namespace muster
