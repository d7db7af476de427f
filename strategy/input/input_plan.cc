#include "strategy/input/internal/input_plan.h"

#include <algorithm>
#include <utility>

#include "collectives/group.h"
#include "common/base/words.h"
#include "common/data/pipeline/rewrite.h"
#include "common/telemetry/log.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/default_strategy.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/strategy.h"
#include "strategy/input/element_codec.h"
#include "strategy/input/input_link.h"
#include "strategy/input/internal/process_link.h"

namespace muster::internal {
namespace {

std::vector<device::Place> devices_of(const Strategy& strategy) {
  if (dynamic_cast<const DefaultStrategy*>(&strategy) != nullptr) return {device::Place{}};
  std::vector<device::Place> devices;
  for (const std::string& name : strategy.worker_devices()) {
    devices.push_back(value_of(device::FindPlace(name)));
  }
  return devices;
}

void check_options(const Strategy& strategy, const InputOptions& options) {
  if (options.experimental_per_replica_buffer_size < 0) {
    raise(InvalidArgument("experimental_per_replica_buffer_size: {}; 0 and more are allowed",
                          options.experimental_per_replica_buffer_size));
  }
  const bool per_replica =
      options.experimental_replication_mode == InputReplicationMode::kPerReplica;
  const bool several_workers = strategy.collectives() != nullptr;
  if (per_replica && (strategy.name() == "CentralStorageStrategy" ||
                      strategy.name() == "MultiWorkerMirroredStrategy" || several_workers)) {
    raise(Unimplemented("InputReplicationMode PER_REPLICA is not supported by {}{}",
                        strategy.name(), several_workers ? " of several workers" : ""));
  }
  if (!options.experimental_place_dataset_on_device) return;
  if (!per_replica) {
    raise(
        InvalidArgument("experimental_place_dataset_on_device with replication mode PER_WORKER: a "
                        "dataset of several replicas has no one device; PER_REPLICA is allowed"));
  }
  if (options.experimental_fetch_to_device) {
    raise(
        InvalidArgument("experimental_place_dataset_on_device and experimental_fetch_to_device are "
                        "both given; a dataset on the device needs no fetching: leave one out"));
  }
}

// What is settled before there is a pipeline: workers, replicas, and where elements are fetched to.
InputPlan begin_plan(Strategy& strategy, const InputOptions& options, InputWorkers workers) {
  RequireCrossReplica(strategy, "distributing a dataset", "the iterator outside of run()");
  check_options(strategy, options);
  const std::vector<device::Place> devices = devices_of(strategy);
  InputPlan plan;
  plan.strategy = strategy.ref();
  plan.options = options;
  plan.replicas = static_cast<int>(devices.size());
  // Where nobody says otherwise, the workers are the strategy's processes.
  const collectives::Group* const processes = strategy.collectives();
  if (processes != nullptr && workers.count == 1 && workers.link == nullptr) {
    workers.count = processes->size();
    workers.index = processes->rank();
    workers.link = process_link(strategy);
  }
  if (Status bad = data::CheckShard({.workers = workers.count, .index = workers.index});
      !bad.ok()) {
    raise(bad);
  }
  if (workers.replicas == 0) workers.replicas = workers.count * plan.replicas;
  if (workers.replicas % workers.count != 0) {
    raise(
        InvalidArgument("{} in sync on {}: distributed input requires every worker to have the "
                        "same number of replicas",
                        Counted(workers.replicas, "replica"), Counted(workers.count, "worker")));
  }
  if (workers.replicas / workers.count != plan.replicas) {
    raise(InvalidArgument("{} in sync on {} {} {} on each, but {} has {}",
                          Counted(workers.replicas, "replica"), Counted(workers.count, "worker"),
                          Agreeing(workers.replicas, "is", "are"), workers.replicas / workers.count,
                          strategy.name(), plan.replicas));
  }
  if (workers.link != nullptr && workers.link->workers() != workers.count) {
    raise(InvalidArgument("a link of {} was given for {}",
                          Counted(workers.link->workers(), "worker"), workers.count));
  }
  if (options.experimental_fetch_to_device.value_or(true)) plan.devices = devices;
  plan.workers = std::move(workers);
  return plan;
}

// Whether all sizes are known, and equal, of every element.
bool statically_shaped(const data::ElementSpec& spec) {
  if (!spec) return false;
  for (const data::ColumnInfo& info : *spec) {
    if (std::any_of(info.shape.begin(), info.shape.end(), [](std::int64_t n) { return n < 0; })) {
      return false;
    }
  }
  return true;
}

// Element n goes to device n mod their number.
class Fetch final : public data::NodeIterator {
 public:
  Fetch(std::unique_ptr<data::NodeIterator> input, std::vector<device::Place> devices)
      : input_(std::move(input)), devices_(std::move(devices)) {}
  data::Item Next() override {
    MUSTER_TRY_ASSIGN(std::optional<data::Element> element, input_->Next());
    if (!element) return std::nullopt;
    const device::Place device = devices_[next_++ % devices_.size()];
    MUSTER_TRY_ASSIGN(data::Element there, on_device(*std::move(element), device));
    return there;
  }
  // To a position, which is before a step: the first replica's element comes next, also where the
  // position was saved with another number of replicas.
  Result<std::int64_t> Skip(std::int64_t count) override { return input_->Skip(count); }

 private:
  const std::unique_ptr<data::NodeIterator> input_;
  const std::vector<device::Place> devices_;
  std::size_t next_ = 0;
};

data::Pipeline fetched(const data::Pipeline& pipeline, const std::vector<device::Place>& devices) {
  if (devices.empty()) return pipeline;
  return pipeline.Custom(
      "fetch_to_device",
      [devices](std::unique_ptr<data::NodeIterator> input,
                const data::IteratorContext&) -> Result<std::unique_ptr<data::NodeIterator>> {
        return std::make_unique<Fetch>(std::move(input), devices);
      },
      {.spec = pipeline.node()->spec(), .cardinality = pipeline.node()->cardinality()});
}

std::vector<InputContext> contexts_of(const InputPlan& plan) {
  const InputWorkers& workers = plan.workers;
  if (plan.options.experimental_replication_mode == InputReplicationMode::kPerWorker) {
    return {InputContext(workers.count, workers.index, workers.replicas)};
  }
  std::vector<InputContext> contexts;
  for (int replica = 0; replica < plan.replicas; ++replica) {
    contexts.emplace_back(workers.replicas, workers.index * plan.replicas + replica,
                          workers.replicas);
  }
  return contexts;
}

// Takes over the pipelines that are read.
void finish_plan(InputPlan& plan, const std::vector<data::Pipeline>& pipelines) {
  bool finite = false;
  for (const data::Pipeline& pipeline : pipelines) {
    raise_unless_ok(pipeline.status());
    finite = finite || pipeline.node()->cardinality() != data::kInfinite;
  }
  plan.spec = pipelines.front().node()->spec();
  plan.agrees = finite && plan.workers.count > 1;
  plan.partial = finite && (plan.workers.count > 1 || !statically_shaped(plan.spec));
  if (plan.agrees && plan.workers.link == nullptr) {
    raise(
        InvalidArgument("{} workers read finite data, and have no link to agree over; give one in "
                        "InputWorkers, or repeat() the dataset",
                        plan.workers.count));
  }
  // Any worker's replica may get an empty batch in the last step.
  if (plan.agrees && plan.spec) {
    for (data::ColumnInfo& info : *plan.spec) {
      if (!info.shape.empty()) info.shape[0] = -1;
    }
  }
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    std::vector<device::Place> devices = plan.devices;
    if (pipelines.size() > 1 && !devices.empty()) devices = {plan.devices[i]};
    const std::int64_t ahead = std::int64_t{plan.options.experimental_per_replica_buffer_size} *
                               (pipelines.size() > 1 ? 1 : plan.replicas);
    data::Pipeline last = fetched(pipelines[i], devices);
    if (ahead > 0) last = last.Prefetch(ahead);
    raise_unless_ok(last.status());
    plan.pipelines.push_back(std::move(last));
  }
}

// What is to be said of a dataset that was shared out among `count` workers; each is logged once.
std::vector<std::string> warn_about(const data::Sharded& sharded, int count) {
  std::vector<std::string> warnings;
  if (sharded.choice.fell_back) {
    const std::string& hider = sharded.choice.hider_of_files;
    warnings.push_back(fmt::format(
        "auto-sharding a dataset by data: {}, so every worker reads everything and keeps its part; "
        "with_options({{.auto_shard_policy = kData}}) says that this is meant",
        hider.empty() ? "no reader of file names was found in it"
                      : hider + " needs all elements in order"));
  }
  if (const std::int64_t files = sharded.choice.files; files >= 0 && files < count) {
    warnings.push_back(fmt::format(
        "auto-sharding a dataset by file: it has {} for {} workers, so {} of them {} nothing to "
        "read; with_options({{.auto_shard_policy = kData}}) splits by element",
        Counted(files, "file"), count, count - files, Agreeing(count - files, "has", "have")));
  }
  if (!sharded.drawn_order.empty()) {
    warnings.push_back(fmt::format(
        "auto-sharding a dataset over {} workers: {} has no seed, so each process has an order of "
        "its own, and some elements are read by several of them, some by none; give it a seed",
        count, sharded.drawn_order));
  }
  for (const std::string& warning : warnings) log::Warning("{}", warning);
  return warnings;
}

// Strings stay in host memory.
Result<data::Element> on_card(data::Element element, device::Place place) {
  try {
    for (data::Column& column : element.columns) {
      if (column.info.dtype != DType::kString) column = card_column(column, place);
    }
  } catch (const c10::Error& error) {  // out of memory, most of all
    return ResourceExhausted("a batch for {}: {}", place.ToString(),
                             error.what_without_backtrace());
  }
  return element;
}

}  // namespace

Result<data::Element> on_device(data::Element element, device::Place device) {
  if (device::IsGpu(device)) return on_card(std::move(element), device);
  const int arena_index = device::ArenaOf(device);
  for (data::Column& column : element.columns) {
    if (column.info.dtype == DType::kString || device::Arena::IndexOf(column.data) == arena_index) {
      continue;
    }
    const std::size_t bytes = column.bytes();
    if (arena_index == 0) {
      auto copy = std::make_shared<std::vector<std::byte>>(column.data, column.data + bytes);
      column.data = copy->data();
      column.owner = std::move(copy);
      continue;
    }
    device::Arena& arena = device::Arena::Of(arena_index);
    auto* const memory = static_cast<std::byte*>(arena.Allocate(bytes));
    if (memory == nullptr) {
      return ResourceExhausted("no memory for a batch of {} on {}", Counted(bytes, "byte"),
                               device.ToString());
    }
    std::copy_n(column.data, bytes, memory);
    column.owner =
        std::shared_ptr<const void>(memory, [&arena](void* block) { arena.Free(block); });
    column.data = memory;
  }
  return element;
}

InputPlanPtr plan_dataset(Strategy& strategy, const Graph& graph, const InputOptions& options,
                          InputWorkers workers, bool split) {
  if (options.experimental_replication_mode == InputReplicationMode::kPerReplica) {
    check_options(strategy, options);
    raise(
        Unimplemented("InputReplicationMode PER_REPLICA needs a dataset for each replica: use "
                      "distribute_datasets_from_function()"));
  }
  InputPlan plan = begin_plan(strategy, options, std::move(workers));
  const data::Shard shard{.workers = plan.workers.count, .index = plan.workers.index};
  data::Pipeline mine = graph.pipeline();
  if (split && plan.workers.replicas > 1) {
    mine = value_of(data::RebatchForReplicas(mine, shard, plan.replicas));
  }
  const data::Sharded sharded = value_of(data::AutoShard(mine, shard));
  const std::int64_t files = sharded.choice.files;
  if (strategy.collectives() != nullptr && files >= 0 && files < plan.workers.count) {
    raise(
        InvalidArgument("auto-sharding a dataset by file: it has {} for {}, and each needs one; "
                        "with_options({{.auto_shard_policy = kData}}) splits by element",
                        Counted(files, "file"), Counted(plan.workers.count, "worker")));
  }
  plan.warnings = warn_about(sharded, plan.workers.count);
  plan.original = graph.pipeline();
  finish_plan(plan, {sharded.pipeline});
  return std::make_shared<const InputPlan>(std::move(plan));
}

InputPlanPtr shard_plan(const InputPlan& plan, int num_shards, int index) {
  if (!plan.original) {
    raise(
        Unimplemented("auto_shard() of datasets from a function: shard them in the function, by "
                      "its InputContext"));
  }
  const data::Sharded shard =
      value_of(data::AutoShard(*plan.original, {.workers = num_shards, .index = index}));
  InputPlan sharded = plan;
  sharded.pipelines.clear();
  sharded.warnings = warn_about(shard, num_shards);
  sharded.original = shard.pipeline;
  finish_plan(sharded, {shard.pipeline});
  return std::make_shared<const InputPlan>(std::move(sharded));
}

InputPlanPtr plan_from_function(Strategy& strategy,
                                const std::function<Graph(const InputContext&)>& dataset_fn,
                                const InputOptions& options, InputWorkers workers) {
  InputPlan plan = begin_plan(strategy, options, std::move(workers));
  std::vector<data::Pipeline> pipelines;
  for (const InputContext& context : contexts_of(plan)) {
    pipelines.push_back(dataset_fn(context).pipeline());
  }
  finish_plan(plan, pipelines);
  return std::make_shared<const InputPlan>(std::move(plan));
}

std::optional<std::vector<TensorSpec>> element_spec(const InputPlan& plan) {
  return tensor_specs(plan.spec);
}
const std::vector<std::string>& warnings(const InputPlan& plan) { return plan.warnings; }

}  // namespace muster::internal

namespace muster {
namespace {

data::InputContext checked(const InputContext& context) {
  return value_of(data::InputContext::Create(
      context.num_input_pipelines(), context.input_pipeline_id(), context.num_replicas_in_sync()));
}

}  // namespace

InputContext::InputContext(int num_input_pipelines, int input_pipeline_id, int num_replicas_in_sync)
    : num_input_pipelines_(num_input_pipelines),
      input_pipeline_id_(input_pipeline_id),
      num_replicas_in_sync_(num_replicas_in_sync) {
  (void)checked(*this);
}

std::int64_t InputContext::get_per_replica_batch_size(std::int64_t global_batch_size) const {
  return value_of(checked(*this).PerReplicaBatchSize(global_batch_size));
}

std::string InputContext::to_string() const { return checked(*this).ToString(); }

}  // namespace muster
