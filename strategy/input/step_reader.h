// Distributed datasets without their types. Programs use distributed_dataset.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/data/element.h"
#include "strategy/input/graph.h"
#include "strategy/input/input_options.h"

namespace muster {
class Strategy;

namespace internal {

// Which pipelines this worker reads, and how; immutable.
struct InputPlan;
using InputPlanPtr = std::shared_ptr<const InputPlan>;

// One dataset over all workers' replicas. `split`: batches are global, and cut into pieces; else
// each replica takes whole elements.
//   Errors: experimental_distribute_dataset()'s.
InputPlanPtr plan_dataset(Strategy& strategy, const Graph& graph, const InputOptions& options,
                          InputWorkers workers, bool split);
// `dataset_fn` is called when everything else is known to be right.
//   Errors: distribute_datasets_from_function()'s, and what `dataset_fn` throws.
InputPlanPtr plan_from_function(Strategy& strategy,
                                const std::function<Graph(const InputContext&)>& dataset_fn,
                                const InputOptions& options, InputWorkers workers);
// The dataset of `plan` before it was distributed, unsplit and reduced to a shard by its policy; of
// a shard, that shard.
InputPlanPtr shard_plan(const InputPlan& plan, int num_shards, int index);

std::optional<std::vector<TensorSpec>> element_spec(const InputPlan& plan);
const std::vector<std::string>& warnings(const InputPlan& plan);

[[noreturn]] void raise_empty_optional();
[[noreturn]] void raise_end_of_data();

// One pass. After an error, or the end, every further step is the same.
// Threading: one thread.
class StepReader {
 public:
  // `pass`: from 0. `position`: of save_position().
  //   INVALID_ARGUMENT, FAILED_PRECONDITION, DATA_LOSS: of the position.
  StepReader(InputPlanPtr plan, std::uint64_t pass, const std::optional<std::string>& position);
  ~StepReader();
  StepReader(StepReader&&) noexcept;
  StepReader& operator=(StepReader&&) noexcept;

  // An element for each replica; nothing at the end.
  //   INVALID_ARGUMENT: in a replica function ("should be called from outside of replica_fn").
  std::optional<std::vector<data::Element>> next();
  // Before the next step, or the one that failed.
  std::string save_position() const;
  // The position's, or what it was made with.
  std::uint64_t pass() const;
  const InputPlan& plan() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace internal
}  // namespace muster
