#include <set>

#include "common/base/environment.h"
#include "common/base/words.h"
#include "common/cluster/device_name.h"
#include "device/gpu.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/kinds/central_storage_strategy.h"
#include "strategy/kinds/internal/places.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/resolver/cluster_resolver.h"
#include "strategy/workers/internal/worker_cluster.h"
#include "strategy/workers/internal/worker_group.h"

namespace muster {

using internal::NamesOrAll;
using internal::PlacesOf;

namespace {

std::string TasksOf(const ClusterSpec& spec) {
  std::vector<std::string> tasks;
  for (const auto& [job, addresses] : spec.as_map()) {
    for (const auto& [index, address] : addresses) {
      tasks.push_back(fmt::format("{}:{}", job, index));
    }
  }
  return tasks.empty() ? "no tasks" : Joined(tasks);
}

// A device of the task that this process is, as the process itself names it; other names as they
// are. INVALID_ARGUMENT: a device of another task.
std::string OnThisTask(const std::string& name) {
  const Result<cluster::DeviceName> device = cluster::DeviceName::Parse(name);
  if (!device.ok() || device->job.value_or("localhost") == "localhost") return name;
  TFConfigClusterResolver resolver;
  const int task = device->task.value_or(0);
  if (resolver.task_type() == device->job && resolver.task_id() == task) {
    return fmt::format("{}:{}", device->type.value_or("CPU"), device->index.value_or(0));
  }
  const std::optional<std::string> type = resolver.task_type();
  raise(InvalidArgument(
      "device {} is one of {}:{}, and this process is {} (TF_CONFIG has {}): a strategy computes "
      "in "
      "its own process. Run the program on that task, give functions to workers by a "
      "ClusterCoordinator, or train on all of them by a MultiWorkerMirroredStrategy",
      name, *device->job, task,
      type ? fmt::format("{}:{}", *type, resolver.task_id().value_or(0)) : "no task",
      TasksOf(resolver.cluster_spec())));
}

}  // namespace

std::vector<std::string> internal::NamesOrAll(const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& name : names) all.push_back(OnThisTask(name));
  if (!all.empty()) return all;
  const std::size_t gpus = device::LogicalGpus::OfProcess().Cards().size();
  for (std::size_t i = 0; i < gpus; ++i) all.push_back(fmt::format("GPU:{}", i));
  if (all.empty()) all.emplace_back("CPU:0");
  return all;
}

device::Place internal::PlaceOf(const std::string& name) {
  return value_of(device::FindPlace(OnThisTask(name)));
}

std::vector<device::Place> internal::PlacesOf(const std::vector<std::string>& names) {
  std::vector<device::Place> places;
  std::set<device::Place> seen;
  for (const std::string& name : NamesOrAll(names)) {
    places.push_back(value_of(device::FindPlace(name)));
    if (!seen.insert(places.back()).second) {
      raise(InvalidArgument("device {} is named twice", name));
    }
  }
  return places;
}

namespace {

device::Place ParameterPlace(const std::vector<device::Place>& compute,
                             const std::optional<std::string>& named) {
  if (named.has_value()) return internal::PlaceOf(*named);
  return compute.size() == 1 ? compute[0] : device::Place{};
}

}  // namespace

OneDeviceStrategy::OneDeviceStrategy(const std::string& device)
    : Strategy({internal::PlaceOf(device)}, {internal::PlaceOf(device)}) {}

// Null, both, where the replicas are this process's alone.
struct MirroredStrategy::Joined {
  std::shared_ptr<ClusterResolver> resolver = nullptr;
  std::shared_ptr<::muster::collectives::Group> group = nullptr;
};

MirroredStrategy::Joined MirroredStrategy::join(const std::vector<std::string>& devices) {
  if (!devices.empty()) return {};
  const auto resolver = std::make_shared<TFConfigClusterResolver>();
  const Environment environment = ProcessEnvironment();
  const auto cluster = internal::workers_in_step(*resolver, environment);
  if (!cluster) return {};
  return {.resolver = resolver,
          .group = internal::join_workers(*cluster,
                                          {.replicas = static_cast<int>(PlacesOf({}).size()),
                                           .within = std::nullopt,
                                           .secret = internal::secret_of(*cluster, "", environment),
                                           .wait_page = internal::wait_page_of(environment),
                                           .costs = internal::link_costs_of(environment)})};
}

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices,
                                   std::shared_ptr<CrossDeviceOps> cross_device_ops, Joined joined)
    : Strategy(PlacesOf(devices), PlacesOf(devices),
               cross_device_ops != nullptr ? std::move(cross_device_ops)
                                           : mirrored_cross_device_ops(NamesOrAll(devices)),
               std::move(joined.group)),
      resolver_(std::move(joined.resolver)) {}

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices,
                                   std::shared_ptr<CrossDeviceOps> cross_device_ops)
    : MirroredStrategy(devices, std::move(cross_device_ops), join(devices)) {}

CentralStorageStrategy::CentralStorageStrategy(const std::vector<std::string>& compute_devices,
                                               const std::optional<std::string>& parameter_device)
    : Strategy(PlacesOf(compute_devices),
               {ParameterPlace(PlacesOf(compute_devices), parameter_device)}) {}

}  // namespace muster
