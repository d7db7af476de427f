// What distributed datasets are made of, without types: which pipelines this worker reads, and the
// steps, one element for each of its replicas.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/data/pipeline/iterator.h"
#include "common/data/pipeline/pipeline.h"
#include "strategy/input/input_link.h"
#include "strategy/input/input_options.h"

namespace muster {
class Strategy;

namespace internal {

// Everything that is settled when a dataset is distributed.
struct InputPlan {
  // One, or with PER_REPLICA one for each replica.
  std::vector<data::Pipeline> pipelines;
  int replicas = 1;  // of this worker
  InputWorkers workers;
  InputOptions options;
  // Arenas by replica, where elements are fetched to; none: they stay where they are.
  std::vector<int> devices;
  // The data may end within a step: replicas then get empty batches.
  bool partial = false;
  // Workers with finite data meet at each step.
  bool agrees = false;
  // Of an element of one replica.
  data::ElementSpec spec;
  // Each was logged once, when the plan was made.
  std::vector<std::string> warnings;
  // What was distributed; absent from a function.
  std::optional<data::Pipeline> original;
};

// One dataset over all workers' replicas. `split`: batches are global, and cut into pieces; else
// each replica takes whole elements.
//   INVALID_ARGUMENT, UNIMPLEMENTED, NOT_FOUND (thrown): experimental_distribute_dataset()'s.
InputPlan plan_dataset(Strategy& strategy, const data::Pipeline& pipeline,
                       const InputOptions& options, InputWorkers workers, bool split);
// The same with the replicas' and workers' numbers checked, before any dataset is made: then the
// function of the user is called for each of `contexts`.
InputPlan plan_from_function(Strategy& strategy, const InputOptions& options, InputWorkers workers);
std::vector<InputContext> contexts_of(const InputPlan& plan);
// The dataset of `plan` before it was distributed, unsplit and reduced to a shard by data.
InputPlan shard_plan(const InputPlan& plan, int num_shards, int index);
// Takes over the datasets that the function returned.
void finish_plan(InputPlan& plan, std::vector<data::Pipeline> pipelines);

// One pass. Errors are thrown; after one, or after the end, every further step is the same.
// Threading: one thread. Lifetime: keeps the plan's parts that it needs.
class StepReader {
 public:
  // `position`: of save_position(). INVALID_ARGUMENT, FAILED_PRECONDITION, DATA_LOSS as
  // data::Iterator::Make().
  StepReader(std::shared_ptr<const InputPlan> plan, std::uint64_t pass,
             const std::optional<std::string>& position);

  // An element for each replica; nothing at the end.
  //   INVALID_ARGUMENT: in a replica function ("should be called from outside of replica_fn").
  std::optional<std::vector<data::Element>> next();
  std::string save_position() const;

 private:
  // What the pipelines have for this step: fewer elements than replicas at the end.
  Result<std::vector<std::optional<data::Element>>> read();
  Status agree(std::vector<std::optional<data::Element>>& elements, const Status& failed,
               bool& go_on);

  std::shared_ptr<const InputPlan> plan_;
  std::vector<std::unique_ptr<data::Iterator>> iterators_;
  std::unique_ptr<InputLink::Session> session_;  // null: nothing to agree on
  // Of the last element that was seen, by any worker; what empty ones are made of.
  std::optional<std::vector<data::ColumnInfo>> columns_;
  bool over_ = false;
  Status failure_;
};

}  // namespace internal
}  // namespace muster
