// The variables of a job under a strategy of one machine, with their optimizer slots: initial
// values, checkpoints, and the update rules, which are those of the parameter servers.
//
// Threading: updates from replicas, in their contexts; the rest from one thread, outside.
// Errors are exceptions (muster::Error), as everywhere in strategy/. Includes libtorch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "ps/optimizer.h"
#include "services/executor/step_sums.h"
#include "strategy/core/strategy.h"
#include "strategy/values/indexed_slices.h"
#include "strategy/variables/variable.h"

namespace muster::v1 {
class JobPlan;
class SaveReport;
}  // namespace muster::v1

namespace muster::executor {

class LocalVariables {
 public:
  // The value that an archive carries for the plan's variable.
  using ArchiveValue = std::function<std::span<const float>(std::uint32_t id)>;

  // From the committed checkpoint in `restore_from`, else from initial values; on the devices of
  // `strategy`, which outlives it.
  //   DATA_LOSS: the checkpoint is damaged. INVALID_ARGUMENT: it is of another model or optimizer.
  //   RESOURCE_EXHAUSTED: they do not fit into memory.
  LocalVariables(Strategy& strategy, const v1::JobPlan& plan, const std::string& restore_from,
                 const ArchiveValue& archive_value);

  // By the ids of the plan. Here: the replica's own component in a replica.
  torch::Tensor Value(std::uint32_t id) const { return at(id).value.value(); }

  // Called by all replicas with the same gradient: each component is updated once.
  void UpdateDense(std::uint32_t id, std::uint64_t step, const torch::Tensor& gradient);
  // Every index at most once.
  void UpdateRows(std::uint32_t id, std::uint64_t step, const IndexedSlices& gradient);

  v1::SaveReport Save(const std::string& directory) const;
  // Variables and slots, in an order that is the same in all processes of the job.
  void ForEach(const std::function<void(const Variable&)>& each) const;

 private:
  struct Stored {
    std::string name;
    std::vector<std::int64_t> shape;
    Variable value;
    std::vector<Variable> slots;
  };
  const Stored& at(std::uint32_t id) const { return stored_[id]; }
  void RequireMemory(const v1::JobPlan& plan) const;

  Strategy& strategy_;
  const ps::Optimizer optimizer_;
  std::vector<Stored> stored_;  // by id
};

}  // namespace muster::executor
