// Brings the TPU cores of this process up, and takes them down.
//
// There is no runtime of real TPUs yet: cores are emulated, each by memory of its own and by the
// thread of the replica that computes for it. At most 64.
#pragma once

#include <string>

#include "strategy/tpu/topology.h"

namespace muster {

class ClusterResolver;

struct TpuSystemOptions {
  // Chips along x, y and z, and cores of a chip: "2x2x1x2". Empty: MUSTER_TPU_TOPOLOGY of the
  // environment, else that of the cores that are up.
  std::string topology = {};
};

// Where each core is: TPU:0, TPU:1, ... are numbered along the cores of a chip, then x, y, z. Cores
// that are up already stay so ("has already been initialized", says the log), with what lies on
// them. Threading: any thread.
//   INVALID_ARGUMENT: no such topology, or more cores than can be emulated.
//   FAILED_PRECONDITION: no topology is given, or cores of another one are up.
Topology initialize_tpu_system(const TpuSystemOptions& options = {});

// The same for the TPU that `resolver` finds: that of this process ("local").
//   UNIMPLEMENTED: the resolver names a TPU of other hosts, whose runtime Muster does not have. And
//   what the resolver throws.
Topology initialize_tpu_system(ClusterResolver& resolver, const TpuSystemOptions& options = {});

// From here on no device is called TPU:n, and no TPUStrategy can be made; those that there are keep
// their cores. Another topology may then be initialized. FAILED_PRECONDITION: no cores are up.
void shutdown_tpu_system();

namespace internal {
// That of the cores that are up. FAILED_PRECONDITION: none are.
Topology current_topology();
}  // namespace internal

}  // namespace muster
