// Datasets spread over the replicas of a strategy, and over workers.
//
//   auto data = experimental_distribute_dataset(strategy, examples.batch(64));
//   for (const PerReplica<Batch>& batch : data) strategy.run(step, batch);
//
// The batches of a distributed dataset are global: each is cut into one piece for every replica of
// every worker, and each worker reads its share (auto-shard policy of the dataset's options). From
// a function, each replica takes whole elements. docs/input.md has the rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/core/default_strategy.h"
#include "strategy/core/strategy.h"
#include "strategy/input/dataset.h"
#include "strategy/input/input_link.h"
#include "strategy/input/input_options.h"
#include "strategy/input/step_reader.h"
#include "strategy/values/distributed_values.h"

namespace muster {

// A step's values, or none at the end of the data.
template <class T>
class DistributedOptional {
 public:
  DistributedOptional() = default;
  explicit DistributedOptional(PerReplica<T> value) : value_(std::move(value)) {}

  bool has_value() const { return value_.has_value(); }
  explicit operator bool() const { return has_value(); }
  // INVALID_ARGUMENT: there is none.
  const PerReplica<T>& get_value() const {
    if (!value_) internal::raise_empty_optional();
    return *value_;
  }

 private:
  std::optional<PerReplica<T>> value_;
};

// One pass. Replicas that get no data in the last step get empty batches (dimension 0 is 0); with
// several workers, all do the same number of steps.
//   Errors of all calls: the pipeline's; INVALID_ARGUMENT inside a replica function; those of
//   InputLink::Session::agree() where workers agree.
// Threading: one thread.
template <class T>
class DistributedIterator {
 public:
  explicit DistributedIterator(internal::StepReader reader) : reader_(std::move(reader)) {}

  // OUT_OF_RANGE: the end of the data.
  PerReplica<T> get_next() {
    std::optional<PerReplica<T>> step = next();
    if (!step) internal::raise_end_of_data();
    return *std::move(step);
  }
  DistributedOptional<T> get_next_as_optional() {
    std::optional<PerReplica<T>> step = next();
    return step ? DistributedOptional<T>(*std::move(step)) : DistributedOptional<T>();
  }
  // Nothing at the end.
  std::optional<PerReplica<T>> next() {
    const std::optional<std::vector<data::Element>> step = reader_.next();
    if (!step) return std::nullopt;
    std::vector<T> values;
    for (const data::Element& element : *step) values.push_back(internal::unpack<T>(element));
    return PerReplica<T>(std::move(values));
  }

  // The shapes and types of one replica's values; see DistributedDataset::element_spec().
  std::optional<std::vector<TensorSpec>> element_spec() const {
    return internal::element_spec(reader_.plan());
  }
  // This worker's, before the next step: for DistributedDataset::iterator().
  std::string save_position() const { return reader_.save_position(); }

 private:
  internal::StepReader reader_;
};

// Threading: any thread. Lifetime: does not need its strategy.
template <class T>
class DistributedDataset {
 public:
  using value_type = PerReplica<T>;

  explicit DistributedDataset(internal::InputPlanPtr plan)
      : plan_(std::move(plan)), passes_(std::make_shared<internal::Passes>()) {}

  // A new pass; each has an order of its own where the dataset reshuffles. Or on from a position:
  // the passes after that one are those that would have come after it.
  DistributedIterator<T> iterator(const std::optional<std::string>& position = std::nullopt) const {
    internal::StepReader reader(plan_, position ? 0 : passes_->begin(), position);
    if (position) passes_->go_on(reader.pass());
    return DistributedIterator<T>(std::move(reader));
  }
  InputRange<PerReplica<T>, DistributedIterator<T>> begin() const {
    return InputRange<PerReplica<T>, DistributedIterator<T>>(iterator());
  }
  InputRange<PerReplica<T>, DistributedIterator<T>> end() const { return {}; }

  // The shapes and types of one replica's values, leaf by leaf: -1 for the batch dimension where
  // steps differ. Absent where only running the pipeline tells.
  std::optional<std::vector<TensorSpec>> element_spec() const {
    return internal::element_spec(*plan_);
  }
  // The dataset's elements index, index + num_shards, ..., or by its policy its files, what it
  // marks, or (OFF) all; replicas take whole elements. A shard is a dataset, and may be sharded
  // again (under HINT once: what it marks is filled in then). Only of a dataset, not from a
  // function (UNIMPLEMENTED).
  DistributedDataset auto_shard(int num_shards, int index) const {
    return DistributedDataset(internal::shard_plan(*plan_, num_shards, index));
  }
  // What was logged when it was distributed, or sharded.
  const std::vector<std::string>& warnings() const { return internal::warnings(*plan_); }

 private:
  internal::InputPlanPtr plan_;
  std::shared_ptr<internal::Passes> passes_;
};

// Global batches over the replicas of `strategy` and, with `workers`, of other workers' strategies.
// `split`: cut batches into the replicas' pieces; without it each replica takes whole elements.
//   INVALID_ARGUMENT: elements without a batch dimension ("Call the batch method ..."; behind a map
//   the first next() says so), replicas that are not a multiple of the workers, a negative buffer,
//   several workers with finite data and no link.
//   UNIMPLEMENTED: PER_REPLICA.  NOT_FOUND: policy FILE without a reader of file names.
//   FAILED_PRECONDITION: in a replica function, or in a scope of another strategy.
template <class T>
DistributedDataset<T> experimental_distribute_dataset(Strategy& strategy, const Dataset<T>& dataset,
                                                      const InputOptions& options = {},
                                                      const InputWorkers& workers = {},
                                                      bool split = true) {
  return DistributedDataset<T>(
      internal::plan_dataset(strategy, dataset.graph(), options, workers, split));
}

// `dataset_fn`: InputContext -> Dataset<T>, called once for this worker, or with PER_REPLICA once
// for each replica. It splits and shards, if anybody does.
//   INVALID_ARGUMENT: PER_WORKER with experimental_place_dataset_on_device, that together with
//   experimental_fetch_to_device; and as above.  UNIMPLEMENTED: PER_REPLICA under central storage.
template <class F>
auto distribute_datasets_from_function(Strategy& strategy, F&& dataset_fn,
                                       const InputOptions& options = {},
                                       const InputWorkers& workers = {}) {
  using T = typename std::decay_t<std::invoke_result_t<F&, InputContext>>::value_type;
  return DistributedDataset<T>(internal::plan_from_function(
      strategy, [&](const InputContext& context) { return dataset_fn(context).graph(); }, options,
      workers));
}

// The default strategy distributes nothing: the dataset itself.
template <class T>
Dataset<T> experimental_distribute_dataset(DefaultStrategy&, const Dataset<T>& dataset) {
  return dataset;
}
template <class F>
auto distribute_datasets_from_function(DefaultStrategy&, F&& dataset_fn) {
  return dataset_fn(InputContext());
}

}  // namespace muster
