// Plans for tests of ps/.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/partition/placement.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "ps/shard.h"

namespace muster::ps {

inline PushId Update(std::uint64_t closure, std::uint64_t attempt) {
  return {.closure = ClosureId(closure), .attempt = Attempt(attempt)};
}

inline v1::VariableLayout Variable(const std::string& name, const std::vector<std::int64_t>& shape,
                                   v1::InitializerKind kind = v1::INITIALIZER_KIND_ZEROS,
                                   double scale = 0) {
  v1::VariableLayout variable;
  variable.set_name(name);
  variable.mutable_shape()->Assign(shape.begin(), shape.end());
  variable.mutable_initializer()->set_kind(kind);
  variable.mutable_initializer()->set_scale(scale);
  return variable;
}

inline v1::OptimizerSpec Sgd(double learning_rate) {
  v1::OptimizerSpec spec;
  spec.set_kind(v1::OPTIMIZER_KIND_SGD);
  spec.set_learning_rate(learning_rate);
  return spec;
}

// Variables split into `ps_count` shards each, as far as they have rows.
inline v1::JobPlan Plan(std::vector<v1::VariableLayout> variables,
                        const v1::OptimizerSpec& optimizer, std::uint32_t ps_count = 1) {
  v1::PartitionerSpec fixed;
  fixed.set_kind(v1::PARTITIONER_KIND_FIXED);
  fixed.set_num_shards(ps_count);
  v1::JobPlan plan;
  plan.set_job_id("job-1");
  plan.set_view(1);
  plan.set_seed(7);
  plan.set_total_steps(1000);
  *plan.mutable_optimizer() = optimizer;
  const auto placed = partition::PlaceVariables(std::move(variables), fixed, ps_count);
  for (const auto& variable : placed.value()) *plan.add_variables() = variable;
  for (std::uint32_t i = 0; i < ps_count; ++i) plan.add_ps()->set_index(i);
  return plan;
}

}  // namespace muster::ps
