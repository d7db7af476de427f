#include "strategy/tpu/tpu_strategy.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "collectives/torus.h"
#include "common/base/words.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/replica_context.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/tpu/internal/core_copies.h"
#include "strategy/tpu/tpu_system.h"
#include "strategy/train/internal/module_state.h"
#include "strategy/variables/internal/variable_state.h"
#include "strategy/variables/variable.h"

namespace muster {
namespace {

DeviceAssignment AllCores(const Topology& topology) {
  DeviceAssignment::Cores cores;
  for (const Topology::Coordinates& core : topology.device_coordinates()[0]) {
    cores.push_back({core});
  }
  return {topology, std::move(cores)};
}

DeviceAssignment AssignmentFor(const TPUStrategyOptions& options) {
  const Topology topology = internal::current_topology();
  if (!options.experimental_device_assignment.has_value()) return AllCores(topology);
  const DeviceAssignment& given = *options.experimental_device_assignment;
  if (given.topology() == topology) return given;
  raise(InvalidArgument(
      "the device assignment is for a topology of mesh {} on {}, but the cores that are up are "
      "those of mesh {} on one task",
      internal::text_of(given.topology().mesh_shape()),
      Counted(given.topology().num_tasks(), "task"), internal::text_of(topology.mesh_shape())));
}

std::vector<std::vector<device::Place>> PlacesOf(const DeviceAssignment& assignment) {
  std::vector<std::vector<device::Place>> cores;
  for (int r = 0; r < assignment.num_replicas(); ++r) {
    auto& replica = cores.emplace_back();
    for (int core = 0; core < assignment.num_cores_per_replica(); ++core) {
      replica.push_back(device::Place::Tpu(assignment.tpu_ordinal(r, core)));
    }
  }
  return cores;
}

std::vector<device::Place> FirstCores(const DeviceAssignment& assignment) {
  std::vector<device::Place> first;
  for (const auto& replica : PlacesOf(assignment)) first.push_back(replica[0]);
  return first;
}

// The torus that the first cores of the replicas fill: all combinations of the x, y, z and cores of
// a chip that they have. Null: they do not, or there is one replica.
std::unique_ptr<const collectives::Torus> TorusOf(const DeviceAssignment& assignment) {
  collectives::Torus torus;
  std::vector<int> places(static_cast<std::size_t>(assignment.num_replicas()));
  for (int d = 0; d < assignment.topology().mesh_rank(); ++d) {
    const auto dimension = static_cast<std::size_t>(d);
    std::map<int, int> number;  // of each coordinate among those that occur
    for (int r = 0; r < assignment.num_replicas(); ++r) {
      number[assignment.coordinates(r, 0)[dimension]] = 0;
    }
    int next = 0;
    for (auto& [coordinate, index] : number) index = next++;
    torus.dims.push_back(next);
    for (int r = 0; r < assignment.num_replicas(); ++r) {
      int& place = places[static_cast<std::size_t>(r)];
      place = place * next + number[assignment.coordinates(r, 0)[dimension]];
    }
  }
  const bool full = internal::product_of(torus.dims) == assignment.num_replicas() &&
                    std::set<int>(places.begin(), places.end()).size() == places.size();
  if (!full || places.size() < 2) return nullptr;
  torus.places = std::move(places);
  return std::make_unique<const collectives::Torus>(std::move(torus));
}

}  // namespace

struct LogicalDeviceScope::Impl {
  Impl(VariableCreator creator, device::Place place) : variables(std::move(creator)), here(place) {}
  const VariableCreatorScope variables;
  const device::PlaceScope here;
};

LogicalDeviceScope::LogicalDeviceScope(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LogicalDeviceScope::~LogicalDeviceScope() = default;

// Components with a copy on each core of their replica.
class TPUStrategy::Maker final : public internal::ComponentMaker {
 public:
  explicit Maker(const Cores& cores) : cores_(cores) {}

  std::unique_ptr<internal::Component> Make(std::string name, device::Place place,
                                            const VariableSpec&) override {
    const auto replica = std::find_if(cores_.begin(), cores_.end(),
                                      [&](const auto& cores) { return cores[0] == place; });
    return std::make_unique<internal::CoreCopies>(name, *replica);
  }
  bool keeps_modules() const override { return false; }
  std::unique_ptr<internal::ModuleHost> HostModule(internal::ModuleState&) override {
    return nullptr;
  }

 private:
  const Cores& cores_;
};

TPUStrategy::TPUStrategy(const TPUStrategyOptions& options) : TPUStrategy(nullptr, options) {}

TPUStrategy::TPUStrategy(std::shared_ptr<ClusterResolver> resolver,
                         const TPUStrategyOptions& options)
    : TPUStrategy(std::move(resolver), AssignmentFor(options),
                  options.experimental_spmd_xla_partitioning) {}

TPUStrategy::TPUStrategy(std::shared_ptr<ClusterResolver> resolver, DeviceAssignment assignment,
                         bool spmd)
    : Strategy(FirstCores(assignment), FirstCores(assignment),
               std::make_shared<CollectiveAllReduce>()),
      resolver_(std::move(resolver)),
      assignment_(std::move(assignment)),
      cores_(PlacesOf(assignment_)),
      spmd_(spmd),
      torus_(TorusOf(assignment_)),
      maker_(spmd ? std::make_unique<Maker>(cores_) : nullptr) {}

TPUStrategy::~TPUStrategy() = default;

ReduceOp TPUStrategy::op_named(std::string_view name) const {
  try {
    return reduce_op(name);
  } catch (const Error& error) {
    raise(Unimplemented("TPUStrategy reduces by SUM and MEAN alone: {}", error.message()));
  }
}

int TPUStrategy::num_replicas_per_host() const {
  return std::min(assignment_.num_replicas(),
                  assignment_.topology().num_tpus_per_task() / num_cores_per_replica());
}

void TPUStrategy::check_logical_device(int id, std::string_view what) const {
  if (id >= 0 && id < num_cores_per_replica()) return;
  raise(InvalidArgument("{}: logical device {} is not in range: a replica has {}, from 0 on", what,
                        id, Counted(num_cores_per_replica(), "core")));
}

const std::vector<device::Place>& TPUStrategy::own_cores(std::string_view call) const {
  const ReplicaContext* const context = get_replica_context();
  if (context != nullptr && &context->strategy() == this) {
    return cores_[static_cast<std::size_t>(context->local_replica_id())];
  }
  raise(FailedPrecondition(
      "{} needs a replica, whose cores it is about: call it in a function that this strategy runs",
      call));
}

LogicalDeviceScope TPUStrategy::experimental_logical_device(int logical_device_id) {
  check_logical_device(logical_device_id, "experimental_logical_device()");
  if (spmd_) {
    raise(
        InvalidArgument("experimental_logical_device(): in SPMD mode a variable has a copy on each "
                        "core, not on a single one"));
  }
  const auto core = static_cast<std::size_t>(logical_device_id);
  std::vector<std::string> devices;
  for (const auto& replica : cores_) devices.push_back(replica[core].Canonical());
  VariableCreator creator = [this, devices](const std::function<Variable(VariableSpec)>& next,
                                            VariableSpec spec) {
    if (&get_strategy() == this && spec.colocated_devices.empty()) {
      spec.colocated_devices = devices;
    }
    return next(std::move(spec));
  };
  const ReplicaContext* const context = get_replica_context();
  const bool own = context != nullptr && &context->strategy() == this;
  const device::Place here =
      own ? cores_[static_cast<std::size_t>(context->local_replica_id())][core]
          : device::PlaceScope::Current();
  return LogicalDeviceScope(std::make_unique<LogicalDeviceScope::Impl>(std::move(creator), here));
}

torch::Tensor TPUStrategy::experimental_assign_to_logical_device(const torch::Tensor& tensor,
                                                                 int logical_device_id) {
  constexpr std::string_view kCall = "experimental_assign_to_logical_device()";
  if (spmd_) {
    raise(
        InvalidArgument("Cannot assign a tensor to a logical device in SPMD mode: split it, or "
                        "replicate it"));
  }
  check_logical_device(logical_device_id, kCall);
  return internal::on_core(tensor, own_cores(kCall)[static_cast<std::size_t>(logical_device_id)]);
}

SplitTensor TPUStrategy::experimental_split_to_logical_devices(
    const torch::Tensor& tensor, const std::vector<int>& partition_dimensions) {
  return SplitTensor::split(tensor, partition_dimensions,
                            own_cores("experimental_split_to_logical_devices()"));
}

SplitTensor TPUStrategy::experimental_replicate_to_logical_devices(const torch::Tensor& tensor) {
  return SplitTensor::replicate(tensor, own_cores("experimental_replicate_to_logical_devices()"));
}

std::vector<torch::Tensor> TPUStrategy::copies_on_cores(const Variable& variable,
                                                        int replica) const {
  if (&variable.strategy() != this) {
    raise(InvalidArgument("copies_on_cores(): variable {} was made under another strategy",
                          variable.name()));
  }
  if (replica < 0 || replica >= num_replicas_in_sync()) {
    raise(OutOfRange("replica {} of a strategy of {}", replica, num_replicas_in_sync()));
  }
  internal::Component& component = variable.state()->at(replica);
  const auto* const copies = dynamic_cast<const internal::CoreCopies*>(&component);
  if (copies != nullptr) return copies->Snapshots();
  return {component.Snapshot()};
}

internal::ComponentMaker* TPUStrategy::component_maker() const { return maker_.get(); }

bool TPUStrategy::shares_devices_with(const Strategy& other) const {
  return dynamic_cast<const TPUStrategy*>(&other) != nullptr;
}

const collectives::Torus* TPUStrategy::torus() const { return torus_.get(); }

}  // namespace muster
