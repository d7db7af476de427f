#include "strategy/tpu/device_assignment.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "common/telemetry/log.h"
#include "strategy/base/internal/raise.h"
#include "strategy/tpu/internal/ring.h"

namespace muster {
namespace {

using internal::digits_of;
using internal::product_of;
using internal::text_of;
using Shape = std::vector<int>;

// build()'s arguments, and what follows from them.
struct Plan {
  const Topology& topology;
  Shape shape;      // cores of a replica, by dimension
  Shape stride;     // how far apart they are
  Shape footprint;  // what it covers of the mesh
  Shape fitting;    // replicas that fit, by dimension
  int replicas = 0;

  const Shape& mesh() const { return topology.mesh_shape(); }
  int cores() const { return product_of(shape); }
};

Shape OnesOr(const Shape& given, const Topology& topology, std::string_view what) {
  if (given.empty()) return Shape(static_cast<std::size_t>(topology.mesh_rank()), 1);
  const bool positive = std::all_of(given.begin(), given.end(), [](int n) { return n >= 1; });
  if (positive && static_cast<int>(given.size()) == topology.mesh_rank()) return given;
  raise(InvalidArgument("{} {} is not {} numbers of at least 1, one for each dimension of mesh {}",
                        what, text_of(given), topology.mesh_rank(),
                        text_of(topology.mesh_shape())));
}

Plan PlanFor(const Topology& topology, const DeviceAssignmentOptions& options) {
  Plan plan{.topology = topology,
            .shape = OnesOr(options.computation_shape, topology, "computation_shape"),
            .stride = OnesOr(options.computation_stride, topology, "computation_stride"),
            .footprint = {},
            .fitting = {},
            .replicas = options.num_replicas};
  const Shape& mesh = topology.mesh_shape();
  for (std::size_t d = 0; d < mesh.size(); ++d) {
    // No overflow: a number that is larger than the mesh does not fit anyway.
    const bool fits = plan.shape[d] <= mesh[d] && plan.stride[d] <= mesh[d] / plan.shape[d];
    if (!fits) {
      raise(
          InvalidArgument("computation_shape {} with computation_stride {} goes beyond the mesh {}",
                          text_of(plan.shape), text_of(plan.stride), text_of(mesh)));
    }
    plan.footprint.push_back(plan.shape[d] * plan.stride[d]);
    plan.fitting.push_back(mesh[d] / plan.footprint[d] * plan.stride[d]);
  }
  const int most = product_of(plan.fitting);
  if (plan.replicas < 1 || plan.replicas > most) {
    raise(InvalidArgument(
        "{} replicas with computation_shape {} and computation_stride {} do not fit the mesh {}: "
        "from 1 to {} do",
        plan.replicas, text_of(plan.shape), text_of(plan.stride), text_of(mesh), most));
  }
  return plan;
}

// A mesh with holes: devices as they come.
DeviceAssignment::Cores InDeviceOrder(const Plan& plan, DeviceOrderMode mode) {
  const Topology& topology = plan.topology;
  if (mode == DeviceOrderMode::kRing) {
    raise(InvalidArgument("a mesh of which {} devices are missing has no ring order",
                          topology.missing_devices().size()));
  }
  if (product_of(plan.stride) != 1) {
    raise(InvalidArgument(
        "computation_stride {} on a mesh of which {} devices are missing: only a stride of ones is "
        "possible there",
        text_of(plan.stride), topology.missing_devices().size()));
  }
  std::vector<Topology::Coordinates> devices;
  for (const auto& task : topology.device_coordinates()) {
    devices.insert(devices.end(), task.begin(), task.end());
  }
  const auto cores = static_cast<std::size_t>(plan.cores());
  const auto replicas = static_cast<std::size_t>(plan.replicas);
  if (replicas * cores > devices.size()) {
    raise(InvalidArgument("{} replicas of {} cores need {} devices, the topology has {}", replicas,
                          cores, replicas * cores, devices.size()));
  }
  DeviceAssignment::Cores assignment;
  for (std::size_t r = 0; r < replicas; ++r) {
    const auto first = devices.begin() + static_cast<std::ptrdiff_t>(r * cores);
    assignment.emplace_back(first, first + static_cast<std::ptrdiff_t>(cores));
  }
  return assignment;
}

// The smallest t for which t^power >= number.
int RootAbove(int number, std::size_t power) {
  int root = 1;
  const auto reaches = [&] {
    long long product = 1;
    for (std::size_t i = 0; i < power && product < number; ++i) product *= root;
    return product >= number;
  };
  while (!reaches()) ++root;
  return root;
}

// How many replicas lie along each dimension: a block as close to a cube as the mesh allows.
Shape BlockOf(const Plan& plan) {
  const std::size_t rank = plan.fitting.size();
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(plan.fitting[a], (a + 1) % rank) < std::pair(plan.fitting[b], (b + 1) % rank);
  });
  Shape block(rank, 1);
  int remaining = plan.replicas;
  for (std::size_t i = 0; i < rank; ++i) {
    int& taken = block[order[i]];
    taken = std::min(RootAbove(remaining, rank - i), plan.fitting[order[i]]);
    remaining = (remaining + taken - 1) / taken;
  }
  return block;
}

// The replicas on a ring of blocks, the chips of each on a ring of their own, cores fastest.
DeviceAssignment::Cores InRingOrder(const Plan& plan, const Shape& block) {
  const internal::Chip blocks = {block[0], block[1], block[2]};
  const internal::Chip chips = {plan.shape[0], plan.shape[1], plan.shape[2]};
  for (const internal::Chip& sizes : {blocks, chips}) {
    if (!internal::lacks_ring(sizes)) continue;
    log::Warning(
        "device assignment: {}x{}x{} has no ring, for a number is odd; neighbours in the order are "
        "not all neighbours in the mesh",
        sizes[0], sizes[1], sizes[2]);
  }
  const std::vector<internal::Chip> outer = internal::ring_of(blocks);
  const std::vector<internal::Chip> inner = internal::ring_of(chips);
  DeviceAssignment::Cores assignment;
  for (std::size_t r = 0; r < static_cast<std::size_t>(plan.replicas); ++r) {
    auto& replica = assignment.emplace_back();
    for (const internal::Chip& chip : inner) {
      for (int core = 0; core < plan.shape[3]; ++core) {
        Topology::Coordinates coordinates;
        for (std::size_t d = 0; d < 3; ++d) {
          coordinates.push_back(outer[r][d] * plan.shape[d] + chip[d]);
        }
        coordinates.push_back(core);
        replica.push_back(std::move(coordinates));
      }
    }
  }
  return assignment;
}

// The replicas along the cores of a chip, then x, y, z; the cores of each with x slowest.
DeviceAssignment::Cores InMeshOrder(const Plan& plan, const Shape& block) {
  DeviceAssignment::Cores assignment;
  for (int r = 0; r < plan.replicas; ++r) {
    const Shape at = digits_of(r, block, {3, 0, 1, 2});
    auto& replica = assignment.emplace_back();
    for (int core = 0; core < plan.cores(); ++core) {
      const Shape within = digits_of(core, plan.shape, {3, 2, 1, 0});
      Topology::Coordinates coordinates;
      for (std::size_t d = 0; d < at.size(); ++d) {
        const int offset = at[d] / plan.stride[d] * plan.footprint[d] + at[d] % plan.stride[d];
        coordinates.push_back(offset + within[d] * plan.stride[d]);
      }
      replica.push_back(std::move(coordinates));
    }
  }
  return assignment;
}

}  // namespace

DeviceAssignment::DeviceAssignment(Topology topology, Cores core_assignment)
    : topology_(std::move(topology)), core_assignment_(std::move(core_assignment)) {
  if (core_assignment_.empty() || core_assignment_[0].empty()) {
    raise(InvalidArgument("core_assignment is empty: it has a replica with a core"));
  }
  std::set<Topology::Coordinates> taken;
  for (std::size_t r = 0; r < core_assignment_.size(); ++r) {
    const auto& replica = core_assignment_[r];
    if (replica.size() != core_assignment_[0].size()) {
      raise(InvalidArgument("core_assignment: replica {} has {} cores, replica 0 has {}", r,
                            replica.size(), core_assignment_[0].size()));
    }
    for (const Topology::Coordinates& core : replica) {
      if (topology_.task_ordinal_at_coordinates(core) < 0) {
        raise(InvalidArgument("core_assignment: the topology has no device at {} of replica {}",
                              text_of(core), r));
      }
      if (!taken.insert(core).second) {
        raise(InvalidArgument("core_assignment: the core at {} of replica {} is assigned twice",
                              text_of(core), r));
      }
    }
  }
}

DeviceAssignment DeviceAssignment::build(const Topology& topology,
                                         const DeviceAssignmentOptions& options) {
  const Plan plan = PlanFor(topology, options);
  const DeviceOrderMode mode = options.device_order_mode;
  if (!topology.missing_devices().empty()) return {topology, InDeviceOrder(plan, mode)};
  const bool ring_possible = plan.shape[3] == plan.mesh()[3] && product_of(plan.stride) == 1 &&
                             plan.replicas == product_of(plan.fitting);
  if (mode == DeviceOrderMode::kRing && !ring_possible) {
    raise(InvalidArgument(
        "no ring order for {} replicas with computation_shape {} and computation_stride {} on the "
        "mesh {}: it takes all cores of a chip, a stride of ones and {} replicas",
        plan.replicas, text_of(plan.shape), text_of(plan.stride), text_of(plan.mesh()),
        product_of(plan.fitting)));
  }
  const Shape block = BlockOf(plan);
  const bool ring = ring_possible && mode != DeviceOrderMode::kMesh;
  return {topology, ring ? InRingOrder(plan, block) : InMeshOrder(plan, block)};
}

const Topology::Coordinates& DeviceAssignment::coordinates(int replica, int logical_core) const {
  if (replica < 0 || replica >= num_replicas() || logical_core < 0 ||
      logical_core >= num_cores_per_replica()) {
    raise(OutOfRange("logical core {} of replica {}, in an assignment of {} replicas of {} cores",
                     logical_core, replica, num_replicas(), num_cores_per_replica()));
  }
  return core_assignment_[static_cast<std::size_t>(replica)]
                         [static_cast<std::size_t>(logical_core)];
}

int DeviceAssignment::tpu_ordinal(int replica, int logical_core) const {
  return topology_.tpu_device_ordinal_at_coordinates(coordinates(replica, logical_core));
}

std::string DeviceAssignment::tpu_device(int replica, int logical_core,
                                         const std::optional<std::string>& job) const {
  return topology_.tpu_device_name_at_coordinates(coordinates(replica, logical_core), job);
}

std::string DeviceAssignment::host_device(int replica, int logical_core,
                                          const std::optional<std::string>& job) const {
  return topology_.cpu_device_name_at_coordinates(coordinates(replica, logical_core), job);
}

std::vector<int> DeviceAssignment::lookup_replicas(int task, int logical_core) const {
  std::vector<int> replicas;
  const bool known = logical_core >= 0 && logical_core < num_cores_per_replica();
  for (int r = 0; known && r < num_replicas(); ++r) {
    if (topology_.task_ordinal_at_coordinates(coordinates(r, logical_core)) == task) {
      replicas.push_back(r);
    }
  }
  if (replicas.empty()) {
    raise(InvalidArgument("no replica has its logical core {} on task {}", logical_core, task));
  }
  return replicas;
}

int DeviceAssignment::num_hosts() const {
  std::set<int> tasks;
  for (const auto& replica : core_assignment_) {
    for (const Topology::Coordinates& core : replica) {
      tasks.insert(topology_.task_ordinal_at_coordinates(core));
    }
  }
  return static_cast<int>(tasks.size());
}

}  // namespace muster
