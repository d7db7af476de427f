// What the sources of strategy/input share about pipelines.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/data/pipeline/node.h"
#include "strategy/input/graph.h"
#include "strategy/internal/raise.h"

namespace muster::internal {

std::optional<std::vector<TensorSpec>> tensor_specs(const data::ElementSpec& spec);
// For each thread of a pipeline: its functions do not compete for cores with the replicas.
void on_pipeline_thread();

}  // namespace muster::internal
