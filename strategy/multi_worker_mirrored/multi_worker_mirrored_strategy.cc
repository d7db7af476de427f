#include "strategy/multi_worker_mirrored/multi_worker_mirrored_strategy.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "collectives/group.h"
#include "common/base/environment.h"
#include "common/telemetry/log.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/frames.h"
#include "strategy/kinds/internal/places.h"
#include "strategy/multi_worker_mirrored/internal/elastic_run.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/reduce/internal/nccl.h"
#include "strategy/train/internal/saved_state.h"
#include "strategy/workers/internal/worker_cluster.h"
#include "strategy/workers/internal/worker_group.h"

namespace muster {
namespace {

// The GPUs that the resolver says this task has, else its logical CPUs; none where it cannot say:
// whatever is here.
std::vector<std::string> DevicesOf(ClusterResolver& resolver,
                                   const internal::WorkerCluster& cluster) {
  // TF_CONFIG says nothing of devices.
  if (dynamic_cast<TFConfigClusterResolver*>(&resolver) != nullptr) return {};
  AcceleratorCounts counts;
  try {
    counts =
        resolver.num_accelerators({.task_type = cluster.task_type, .task_id = cluster.task_id});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kFailedPrecondition) throw;
    return {};
  }
  std::vector<std::string> devices;
  for (int gpu = 0; gpu < counts["GPU"]; ++gpu) devices.push_back(fmt::format("GPU:{}", gpu));
  const int cores = devices.empty() ? counts["TPU"] : 0;
  for (int core = 0; core < cores; ++core) devices.push_back(fmt::format("TPU:{}", core));
  const int cpus = devices.empty() ? std::max(1, counts["CPU"]) : 0;
  for (int cpu = 0; cpu < cpus; ++cpu) devices.push_back(fmt::format("CPU:{}", cpu));
  return devices;
}

// Who there is; of an elastic job that Muster has launched it is told otherwise than by TF_CONFIG.
internal::WorkerCluster ClusterOf(const MultiWorkerMirroredOptions& options,
                                  ClusterResolver& resolver) {
  if (options.cluster_resolver == nullptr) {
    if (auto cluster = internal::elastic_job(resolver, ProcessEnvironment())) {
      if (options.elastic) return *std::move(cluster);
      internal::refuse_for_good(
          FailedPrecondition(
              "this job was submitted with --workers {}:{}, so its processes come and go, and this "
              "program's strategy needs all of them to the end: make it with {{.elastic = true}} "
              "and hand the loop to run_elastic(), or submit it with --workers N",
              cluster->least, cluster->most),
          ProcessEnvironment());
    }
  }
  return internal::worker_cluster(resolver);
}

std::shared_ptr<CrossDeviceOps> OpsFor(const std::vector<std::string>& devices,
                                       const std::vector<device::Place>& places,
                                       CommunicationImplementation implementation) {
  if (implementation == CommunicationImplementation::kNccl) {
    for (const device::Place place : places) {
      if (device::IsGpu(place)) continue;
      log::Warning("NCCL is for GPUs, and {} is none: RING is used", place.ToString());
      break;
    }
  }
  if (implementation == CommunicationImplementation::kRing) {
    return std::make_shared<CollectiveAllReduce>(implementation);
  }
  return mirrored_cross_device_ops(devices);
}

// Where this worker's replicas add by NCCL, the workers do it, too, on the first card of each.
std::function<void(collectives::Group&)> NcclFor(const CrossDeviceOps& ops,
                                                 const std::vector<device::Place>& places,
                                                 std::chrono::milliseconds call_within) {
  const auto* const collective = dynamic_cast<const CollectiveAllReduce*>(&ops);
  const bool nccl =
      collective != nullptr && collective->implementation() == CommunicationImplementation::kNccl;
  if (!nccl) return nullptr;
  return [card = places[0], call_within](collectives::Group& group) {
    internal::join_nccl(group, card, call_within);
  };
}

}  // namespace

struct MultiWorkerMirroredStrategy::Joined {
  std::shared_ptr<ClusterResolver> resolver;
  internal::WorkerCluster cluster;
  std::vector<device::Place> places;
  std::shared_ptr<CrossDeviceOps> ops;
  std::shared_ptr<::muster::collectives::Group> group;
  std::unique_ptr<Elastic> elastic;
};

struct MultiWorkerMirroredStrategy::Elastic {
  internal::WorkerCluster cluster;
  internal::GroupSecret secret;
  std::chrono::milliseconds call_within;
  std::optional<::muster::collectives::LinkCosts> costs;
  std::unique_ptr<internal::ElasticRun> run = nullptr;
};

// What can be found wrong on this worker alone is found before it waits for the others. An elastic
// one does not join here: its groups are formed step by step.
MultiWorkerMirroredStrategy::Joined MultiWorkerMirroredStrategy::join(
    const MultiWorkerMirroredOptions& options) {
  if (options.cluster_resolver != nullptr && !options.devices.empty()) {
    raise(
        InvalidArgument("a cluster resolver and devices cannot be set at the same time: the "
                        "resolver tells the devices"));
  }
  if (options.call_within <= std::chrono::milliseconds(0)) {
    raise(InvalidArgument("call_within is {} ms: more than 0 is needed",
                          options.call_within.count()));
  }
  if (options.join_within.has_value() && options.join_within->count() <= 0) {
    raise(InvalidArgument("join_within is {} ms: more than 0 is needed",
                          options.join_within->count()));
  }
  Joined joined;
  joined.resolver = options.cluster_resolver;
  if (joined.resolver == nullptr) joined.resolver = std::make_shared<TFConfigClusterResolver>();
  joined.cluster = ClusterOf(options, *joined.resolver);
  const std::vector<std::string> devices = internal::NamesOrAll(
      options.devices.empty() ? DevicesOf(*joined.resolver, joined.cluster) : options.devices);
  joined.places = internal::PlacesOf(devices);
  joined.ops = OpsFor(devices, joined.places, options.implementation);
  const internal::GroupSecret secret =
      internal::secret_of(joined.cluster, options.key, ProcessEnvironment());
  const auto costs = internal::link_costs_of(ProcessEnvironment());
  if (options.elastic) {
    joined.elastic = std::make_unique<Elastic>(Elastic{.cluster = joined.cluster,
                                                       .secret = secret,
                                                       .call_within = options.call_within,
                                                       .costs = costs});
    return joined;
  }
  joined.group = internal::join_workers(
      joined.cluster, {.replicas = static_cast<int>(joined.places.size()),
                       .with_cards = NcclFor(*joined.ops, joined.places, options.call_within),
                       .within = options.join_within,
                       .call_within = options.call_within,
                       .secret = secret,
                       .wait_page = internal::wait_page_of(ProcessEnvironment()),
                       .costs = costs});
  return joined;
}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(Joined joined)
    : Strategy(joined.places, joined.places, std::move(joined.ops), std::move(joined.group)),
      resolver_(std::move(joined.resolver)),
      task_type_(std::move(joined.cluster.task_type)),
      task_id_(joined.cluster.task_id),
      chief_(joined.cluster.chief),
      elastic_(std::move(joined.elastic)) {}

MultiWorkerMirroredStrategy::~MultiWorkerMirroredStrategy() = default;

// The run tells the strategy of each group that it forms: from there on the replicas are those of
// the group's members.
std::uint64_t MultiWorkerMirroredStrategy::run_elastic(
    Checkpoint& state, const std::function<void(const ElasticStep&)>& step,
    const ElasticOptions& options) {
  internal::RequireCrossReplica(*this, "run_elastic()", "it outside run()");
  if (elastic_ == nullptr) {
    raise(FailedPrecondition("run_elastic(): make the strategy with {{.elastic = true}}"));
  }
  if (elastic_->run != nullptr) {
    raise(FailedPrecondition("run_elastic() was called before: a strategy runs once"));
  }
  const auto regroup = [this](std::shared_ptr<::muster::collectives::Group> group) {
    set_collectives(std::move(group));
    chief_ = id_in_cluster() == 0;
  };
  // The others have a chief of their own; who was alone has left nobody.
  const auto left = [this] {
    if (collectives() != nullptr) chief_ = false;
    set_collectives(nullptr);
  };
  elastic_->run = std::make_unique<internal::ElasticRun>(
      internal::ElasticRun::Membership{.cluster = elastic_->cluster,
                                       .secret = elastic_->secret,
                                       .call_within = elastic_->call_within,
                                       .regroup = regroup,
                                       .left = left,
                                       .wait_page = internal::wait_page_of(ProcessEnvironment()),
                                       .costs = elastic_->costs},
      state.tracked(), state.step(), options);
  return elastic_->run->Run([&](std::uint64_t number, int worker, int workers) {
    step(ElasticStep(*this, elastic_->run->state(), number, worker, workers,
                     options.logical_shards));
  });
}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const MultiWorkerMirroredOptions& options)
    : MultiWorkerMirroredStrategy(join(options)) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(
    std::shared_ptr<ClusterResolver> cluster_resolver)
    : MultiWorkerMirroredStrategy(
          MultiWorkerMirroredOptions{.cluster_resolver = std::move(cluster_resolver)}) {}

torch::Tensor MultiWorkerMirroredStrategy::common_zeros(torch::IntArrayRef sizes,
                                                        torch::ScalarType type) {
  internal::RequireCrossReplica(*this, "common_zeros()", "it outside run()");
  std::uint64_t bytes = torch::elementSize(type);
  for (const std::int64_t size : sizes) {
    if (size > 0 && !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes))
      continue;
    bytes = 0;  // which all workers are refused
    break;
  }
  collectives::Group* const between = collectives();
  auto memory = value_of(between == nullptr ? collectives::OrdinaryMemory(bytes)
                                            : between->AllocateCommon(bytes));
  void* const at = memory.get();
  return torch::from_blob(at, sizes, [memory = std::move(memory)](void*) {}, type);
}

int MultiWorkerMirroredStrategy::num_workers() const {
  return collectives() == nullptr ? 1 : collectives()->size();
}

int MultiWorkerMirroredStrategy::id_in_cluster() const {
  return collectives() == nullptr ? 0 : collectives()->rank();
}

}  // namespace muster
